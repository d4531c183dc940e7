"""What is to be generated, and what a turn at it brought. Knows nobody who does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import UserError

ROWS = (1, 8, 32, 64)
"""Rows that engines are compared at, unless flags say."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: its prompt as token ids, and how many tokens shall follow it, whatever the model says."""

    prompt: tuple[int, ...]
    output_len: int

    @property
    def columns(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + self.output_len


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run over some jobs brought."""

    seconds: float
    """From the first prompt to the last token."""
    steps: tuple[float, ...]
    """Seconds from token to token while nothing was read, each step once or once a row."""
    lengths: tuple[int, ...]
    """Tokens generated for each job and kept, in the jobs' order."""


def even_jobs(rng: random.Random, vocab: int, count: int, input_len: int, output_len: int) -> list[Job]:
    """Jobs of one shape; no two prompts are the same."""
    return [Job(_prompt(rng, vocab, input_len), output_len) for _ in range(count)]


def ragged_jobs(rng: random.Random, vocab: int, count: int, shortest: int, longest: int) -> list[Job]:
    """Jobs whose prompts all differ in length, and whose outputs do, each uniform in `shortest` to `longest`.

    Raises UserError when there are fewer lengths than jobs.
    """
    lengths = range(shortest, longest + 1)
    if len(lengths) < count:
        raise UserError(
            f"there are {len(lengths)} lengths from {shortest} to {longest}, not {count} distinct ones: "
            "lower --num-requests, or widen --min-len and --max-len"
        )
    inputs, outputs = rng.sample(lengths, count), rng.sample(lengths, count)
    return [Job(_prompt(rng, vocab, ins), outs) for ins, outs in zip(inputs, outputs, strict=True)]


def longest(jobs: Sequence[Job]) -> int:
    """Columns that hold any of the jobs, also when the longest prompt gets the longest output."""
    return max(len(job.prompt) for job in jobs) + max(job.output_len for job in jobs)


def _prompt(rng: random.Random, vocab: int, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab) for _ in range(length))
