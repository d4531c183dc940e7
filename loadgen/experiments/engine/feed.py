"""Gives a pipeline its rows as the server would: a strategy's own batcher is asked before every turn.

Everything happens in the calling thread, which is the only one that computes. It knows neither what is measured nor
what is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.messages import Admit, BatchShape, Command, ExecutorInfo, FinishReason, RowUpdate, Tally
from engine.pipeline import Pipeline
from engine.sampling.params import SamplingParams
from loadgen.experiments.engine.job import Job, longest
from models.errors import UserError
from scheduler.batching.batcher import Batcher
from scheduler.request import Request, Times
from scheduler.worker import Worker


@dataclass(frozen=True, slots=True)
class Moment:
    """One turn of the pipeline, as seen from outside."""

    at: float
    """Seconds from the start of the run to the end of the turn."""
    seconds: float
    tally: Tally
    shape: BatchShape
    """The batch at the end of the turn."""
    ended: int
    """Rows whose last token it brought."""


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


class Feed:
    """One run of jobs, all there from the start, in their order."""

    def __init__(
        self, pipeline: Pipeline, batcher: Batcher, jobs: Sequence[Job], clock: Callable[[], float], *, device: str
    ) -> None:
        self._pipeline = pipeline
        self._batcher = batcher
        self._clock = clock
        self._requests = _requests(jobs)
        self.answers: list[list[int]] = [[] for _ in jobs]
        """Tokens generated so far, in the jobs' order."""
        arena = pipeline.batch.arena
        context = min(longest(jobs), arena.capacity_tokens)
        self._worker = Worker(
            DirectPort(pipeline, ExecutorInfo(0, device, arena.capacity_tokens, arena.max_rows, context))
        )

    def run(self) -> Iterator[Moment]:
        """Turn by turn to the end. Raises UserError when a row fails or cannot be placed."""
        begin = last = self._clock()
        for request in self._requests:
            self._batcher.add(request, 0.0)
        while self._batcher.waiting or self._worker.requests:
            self._assign(last - begin)
            if self._pipeline.idle:
                raise UserError(f"no room for a row: {self._pipeline.batch.arena.capacity_tokens} tokens of K and V")
            updates = self._pipeline.turn()
            now = self._clock()
            tally, shape = self._pipeline.tally, self._pipeline.shape()
            yield Moment(now - begin, now - last, tally, shape, self._book(updates, shape, now - begin))
            last = now

    def _assign(self, now: float) -> None:
        while (plan := self._batcher.take(self._worker, now)) is not None:
            self._worker.requests.update({request.row_id: request for request in plan.requests})
            self._worker.port.post(plan.command)

    def _book(self, updates: Sequence[RowUpdate], shape: BatchShape, now: float) -> int:
        """Note what rows got; returns how many ended."""
        self._worker.shape = shape
        for update in updates:
            if update.finish_reason is FinishReason.ERROR:
                raise UserError(f"a row failed: {update.error}")
            self._requests[update.row_id].generated += len(update.token_ids)
            self.answers[update.row_id] += update.token_ids
        for handed_back in self._pipeline.take_handed_back():
            rows = [self._worker.requests.pop(row_id) for row_id in handed_back.row_ids]
            self._batcher.hand_back(rows, handed_back.cause, now)
        done = [update.row_id for update in updates if update.finish_reason is not None]
        for row_id in done:
            del self._worker.requests[row_id]
        return len(done)


def _requests(jobs: Sequence[Job]) -> list[Request]:
    """As long as each job says; the scheduler knows of no length but the longest."""
    most = max(job.output_len for job in jobs)
    return [
        Request(
            row_id,
            job.prompt,
            _sampling(job, row_id, most),
            Times(arrival=0.0),
        )
        for row_id, job in enumerate(jobs)
    ]


def _sampling(job: Job, seed: int, most: int) -> SamplingParams:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    asked = {name: getattr(job.sampling, name) for name in names}
    return SamplingParams(max_tokens=most, seed=seed, replay_tokens=job.output_len, **asked)
