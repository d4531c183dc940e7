"""Jobs to generate, and a pipeline that is given them as the server would: a strategy's own batcher is asked before
every turn. Everything happens in the calling thread, which is the only one that computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.messages import Admit, Command, ExecutorInfo, FinishReason, Tally
from engine.pipeline import Pipeline
from engine.sampling.params import SamplingParams
from models.errors import UserError
from models.network.generation_config import SamplingDefaults
from scheduler.batching.batcher import Batcher
from scheduler.request import Request, Times
from scheduler.worker import Worker

GREEDY = SamplingDefaults(temperature=0.0)

Shape: TypeAlias = tuple[int, int]
"""Tokens of a job's prompt and of its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: its prompt as token ids, and how many tokens follow it, even past an end token."""

    prompt: tuple[int, ...]
    output_len: int
    sampling: SamplingDefaults = GREEDY


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
    rng: random.Random, vocab: int, shapes: Iterable[Shape], sampling: SamplingDefaults = GREEDY
) -> list[Job]:
    """Jobs with random prompts, by the tokens of prompt and output of each."""
    return [Job(tuple(rng.randrange(vocab) for _ in range(inputs)), outputs, sampling) for inputs, outputs in shapes]


def draw_ragged_shapes(rng: random.Random, count: int, shortest: int, longest: int) -> list[Shape]:
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


def longest(shapes: Sequence[Shape]) -> int:
    """Columns that hold any of the jobs, also when the longest prompt gets the longest output."""
    return sum(map(max, zip(*shapes, strict=True)))


@dataclass(frozen=True, slots=True)
class Moment:
    """One turn of the pipeline."""

    at: float  # seconds from the start of the run to the end of the turn
    seconds: float
    tally: Tally


class DirectPort:
    """The way to a pipeline in the same thread; a scheduler's Port."""

    def __init__(self, pipeline: Pipeline, info: ExecutorInfo) -> None:
        self._pipeline = pipeline
        self.info = info
        self.alive = True

    def post(self, command: Command) -> None:
        assert isinstance(command, Admit), "nothing is cancelled or paused here"
        self._pipeline.admit(command.rows, command.terms)

    def withdraw(self) -> tuple[Command, ...]:
        """Nothing: commands are carried out as they come."""
        return ()


def feed(
    pipeline: Pipeline, batcher: Batcher, requests: Sequence[Request], clock: Callable[[], float]
) -> Iterator[Moment]:
    """Serve requests, numbered from 0, that are all there from the start, turn by turn to the end.

    Raises UserError when a row fails or cannot be placed.
    """
    arena = pipeline.batch.arena
    longest_request = max(len(one.prompt) + one.sampling.max_tokens for one in requests)
    context = min(longest_request, arena.capacity_tokens)
    info = ExecutorInfo(0, "in this thread", arena.capacity_tokens, arena.max_rows, context)
    worker = Worker(DirectPort(pipeline, info))
    begin = last = clock()
    for request in requests:
        batcher.add(request, 0.0)
    while batcher.waiting or worker.requests:
        while (plan := batcher.take(worker, last - begin)) is not None:
            worker.requests.update({request.row_id: request for request in plan.requests})
            worker.port.post(plan.command)
        if pipeline.idle:
            raise UserError(f"no room for a row: {arena.capacity_tokens} tokens of K and V")
        updates, now = pipeline.turn(), clock()
        worker.shape = pipeline.shape()
        yield Moment(now - begin, now - last, pipeline.tally)
        last = now
        for update in updates:
            if update.finish_reason is FinishReason.ERROR:
                raise UserError(f"a row failed: {update.error}")
            requests[update.row_id].generated += len(update.token_ids)
            if update.finish_reason is not None:
                del worker.requests[update.row_id]


def make_requests(jobs: Sequence[Job]) -> list[Request]:
    """Requests as long as each job says; the scheduler knows of no length but the longest."""
    most = max(job.output_len for job in jobs)
    return [
        Request(row_id, job.prompt, _sampling(job, row_id, most), Times(arrival=0.0)) for row_id, job in enumerate(jobs)
    ]


def _sampling(job: Job, seed: int, most: int) -> SamplingParams:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    asked = {name: getattr(job.sampling, name) for name in names}
    return SamplingParams(max_tokens=most, seed=seed, replay_tokens=job.output_len, **asked)
