"""Jobs to generate, and the outcome of one turn at them. Knows none of the engines that take turns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.errors import UserError
from models.network.generation_config import SamplingDefaults

ROWS = (1, 8, 32, 64)
"""Rows that engines are compared at, unless flags say."""

GREEDY = SamplingDefaults(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: its prompt as token ids, and how many tokens follow it, even past an end token."""

    prompt: tuple[int, ...]
    output_len: int
    sampling: SamplingDefaults = GREEDY

    @property
    def columns(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + self.output_len


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of one run over some jobs."""

    seconds: float
    """Seconds from the first prompt to the last token."""
    steps: tuple[float, ...]
    """Seconds from token to token while nothing was read, each step once or once a row."""
    lengths: tuple[int, ...]
    """Tokens generated for each job and kept, in the jobs' order."""


def draw_jobs(
    rng: random.Random, vocab: int, shapes: Iterable[tuple[int, int]], sampling: SamplingDefaults = GREEDY
) -> list[Job]:
    """Jobs with random prompts, by the tokens of prompt and output of each."""
    return [Job(tuple(rng.randrange(vocab) for _ in range(inputs)), outputs, sampling) for inputs, outputs in shapes]


def draw_ragged_shapes(rng: random.Random, count: int, shortest: int, longest: int) -> list[tuple[int, int]]:
    """Tokens of prompts, which all differ, and of outputs, which all differ too, uniform in `shortest` to `longest`.

    Raises UserError when there are fewer lengths than jobs.
    """
    lengths = range(shortest, longest + 1)
    if len(lengths) < count:
        raise UserError(
            f"there are {len(lengths)} lengths from {shortest} to {longest}, not {count} distinct ones: "
            "lower --num-requests, or widen --min-len and --max-len"
        )
    return list(zip(rng.sample(lengths, count), rng.sample(lengths, count), strict=True))


def longest(jobs: Sequence[Job]) -> int:
    """Columns that hold any of the jobs, also when the longest prompt gets the longest output."""
    return max(len(job.prompt) for job in jobs) + max(job.output_len for job in jobs)
