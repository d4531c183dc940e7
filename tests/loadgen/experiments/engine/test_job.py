from __future__ import annotations

import random

import pytest

from loadgen.experiments.engine.job import Job, even_jobs, longest, ragged_jobs
from models.errors import UserError


def test_ragged_jobs_differ_in_every_length_and_use_the_whole_range() -> None:
    jobs = ragged_jobs(random.Random(0), 300, 11, 5, 15)
    assert sorted(len(job.prompt) for job in jobs) == sorted(job.output_len for job in jobs) == list(range(5, 16))
    assert [len(job.prompt) for job in jobs] != [job.output_len for job in jobs]


def test_more_jobs_than_lengths_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="--num-requests"):
        ragged_jobs(random.Random(0), 300, 12, 5, 15)


def test_even_jobs_have_prompts_of_their_own() -> None:
    jobs = even_jobs(random.Random(0), 300, 8, 6, 3)
    assert {(len(job.prompt), job.output_len) for job in jobs} == {(6, 3)}
    assert len({job.prompt for job in jobs}) == 8


def test_columns_hold_the_longest_prompt_with_the_longest_output() -> None:
    assert longest([Job((1,) * 9, 2), Job((1,) * 3, 7)]) == 16
