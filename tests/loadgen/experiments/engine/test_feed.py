"""Jobs, and a pipeline that serves them as the server would."""

from __future__ import annotations

import random

import pytest

from engine.messages import Tally
from loadgen.experiments.engine.runners import Job, draw_jobs, draw_ragged_shapes, feed, longest, make_requests
from models.errors import UserError
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.request import Request
from scheduler.strategy import STRATEGIES
from tests.engine.rows import pipeline_of
from tests.loadgen.experiments.engine.parts import ticking

JOBS = [Job(tuple(range(3 + number, 3 + 2 * number + 2)), 2 + 3 * number % 7) for number in range(7)]


def serve(
    model: LoadedModel, text: Text, strategy: str, *, slots: int = 3, capacity: int = 2000
) -> tuple[list[tuple[float, Tally]], list[Request]]:
    pipeline, requests = pipeline_of(model, text, capacity=capacity, rows=slots), make_requests(JOBS)
    batcher = assemble(STRATEGIES[strategy], Limits(group_tokens=64, prefill_ahead=1)).batcher
    return list(feed(pipeline, batcher, requests, ticking())), requests


@pytest.mark.parametrize("strategy", ["fcfs-dynamic", "pd", "baton", "baton-pd"])
def test_every_job_gets_as_many_tokens_as_it_asks_for(tiny_model: LoadedModel, tiny_text: Text, strategy: str) -> None:
    moments, requests = serve(tiny_model, tiny_text, strategy)
    assert [one.generated for one in requests] == [job.output_len for job in JOBS]
    total = sum((tally for _, tally in moments), Tally())
    assert total.generated == sum(job.output_len for job in JOBS)
    assert total.prompt == sum(len(job.prompt) for job in JOBS)
    assert [at for at, _ in moments] == [float(turn) for turn in range(1, len(moments) + 1)]
    assert (total.invalid > 0) == (strategy in ("fcfs-dynamic", "pd"))


def test_a_row_that_no_memory_holds_is_an_error(tiny_model: LoadedModel, tiny_text: Text) -> None:
    with pytest.raises(UserError, match="row"):
        serve(tiny_model, tiny_text, "baton-pd", slots=1, capacity=6)


def test_ragged_shapes_differ_in_every_length_and_use_the_whole_range() -> None:
    inputs, outputs = zip(*draw_ragged_shapes(random.Random(0), 11, 5, 15), strict=True)
    assert sorted(inputs) == sorted(outputs) == list(range(5, 16))
    assert inputs != outputs


def test_more_jobs_than_lengths_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="--num-requests"):
        draw_ragged_shapes(random.Random(0), 12, 5, 15)


def test_even_jobs_have_prompts_of_their_own() -> None:
    jobs = draw_jobs(random.Random(0), 300, [(6, 3)] * 8)
    assert {(len(job.prompt), job.output_len) for job in jobs} == {(6, 3)}
    assert len({job.prompt for job in jobs}) == 8


def test_columns_hold_the_longest_prompt_with_the_longest_output() -> None:
    assert longest([(9, 2), (3, 7)]) == 16
