"""The engines to compare, this engine and transformers' `generate`, and the rounds in which they take turns at the same
jobs, so that what else the machine does troubles all alike. This engine's pipeline is fed as the server would: its
batcher is asked before every turn. Everything happens in the calling thread, which is the only one that computes.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from engine.messages import Admit, Command, ExecutorInfo, FinishReason, Tally
from engine.pipeline import Pipeline
from engine.sampling.params import SamplingParams
from loadgen.experiments.engine.measure import Interrupted, apart, torch_threads
from loadgen.experiments.engine.setup import CHUNK_TOKENS, Subject
from models.errors import UserError
from scheduler.assembly import assemble
from scheduler.batching.batcher import Batcher, Limits
from scheduler.plan import Worker
from scheduler.request import Request, Times
from scheduler.strategy import STRATEGIES

Clock: TypeAlias = Callable[[], float]

Shape: TypeAlias = tuple[int, int]
"""Tokens of a job's prompt and of its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: its prompt as token ids, and how many tokens follow it, even past an end token."""

    prompt: tuple[int, ...]
    output_len: int

    @property
    def shape(self) -> Shape:
        return len(self.prompt), self.output_len


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of one run over some jobs."""

    seconds: float
    """Seconds from the first prompt to the last token."""
    steps: tuple[float, ...]
    """Seconds from token to token while nothing was read, each step once or once a row."""
    lengths: tuple[int, ...]
    """Tokens generated for each job and kept, in the jobs' order."""


def draw_jobs(rng: random.Random, vocab: int, shapes: Iterable[Shape]) -> list[Job]:
    """Jobs with random prompts, by the tokens of prompt and output of each."""
    return [Job(tuple(rng.randrange(vocab) for _ in range(inputs)), outputs) for inputs, outputs in shapes]


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
) -> Iterator[tuple[float, Tally]]:
    """Serve requests, numbered from 0, that are all there from the start, turn by turn to the end.

    Yields the seconds from the start to the end of each turn, and what the turn did.

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
        last = now
        yield now - begin, pipeline.tally
        for update in updates:
            if update.finish_reason is FinishReason.ERROR:
                raise UserError(f"a row failed: {update.error}")
            requests[update.row_id].generated += len(update.token_ids)
            if update.finish_reason is not None:
                del worker.requests[update.row_id]


def make_requests(jobs: Sequence[Job]) -> list[Request]:
    """Requests as long as each job says; the scheduler knows of no length but the longest. Tokens are the likeliest."""
    most = max(job.output_len for job in jobs)
    return [
        Request(
            place,
            job.prompt,
            SamplingParams(most, temperature=0.0, replay_tokens=job.output_len),
            Times(arrival=0.0),
        )
        for place, job in enumerate(jobs)
    ]


class Runner(Protocol):
    """Generates for jobs."""

    name: str

    def run(self, jobs: Sequence[Job]) -> Turn:
        """Generate for all jobs. Raises anything that keeps it from running here."""
        ...


@dataclass(slots=True)
class Lengthwise:
    """This engine: a pipeline in process, fed by the default strategy's batcher."""

    subject: Subject
    slots: int
    clock: Clock = time.perf_counter
    name: str = "lengthwise"
    _pipeline: Pipeline | None = None  # made in the first run, whose jobs say how large

    def run(self, jobs: Sequence[Job]) -> Turn:
        return apart(lambda stop: self._run(jobs, stop))

    @torch.inference_mode()
    def _run(self, jobs: Sequence[Job], stop: threading.Event) -> Turn:
        if self._pipeline is None:
            self._pipeline = self.subject.pipeline(self.slots, longest([job.shape for job in jobs]))
        requests, steps, end = make_requests(jobs), list[float](), 0.0
        with torch_threads(1 if self.subject.model.reads_exactly else torch.get_num_threads()):  # as the server has it
            for at, tally in feed(self._pipeline, join_batcher(self.slots), requests, self.clock):
                if stop.is_set():
                    raise Interrupted
                if tally.generated and not tally.prompt:
                    steps.append(at - end)
                end = at
        return Turn(end, tuple(steps), tuple(request.generated for request in requests))


@dataclass(slots=True)
class Generate:
    """transformers' `generate` on static batches of `slots` jobs, each until its longest row ends."""

    network: PreTrainedModel
    slots: int
    clock: Clock = time.perf_counter
    name: str = "generate"

    def run(self, jobs: Sequence[Job]) -> Turn:
        return apart(lambda stop: self._run(jobs, stop))

    @torch.inference_mode()
    def _run(self, jobs: Sequence[Job], stop: threading.Event) -> Turn:
        begin = self.clock()
        steps: list[float] = []
        lengths: list[int] = []
        for first in range(0, len(jobs), self.slots):
            batch = jobs[first : first + self.slots]
            ticker = _Ticker(self.clock, stop)
            made = self._generate(batch, ticker)
            steps += [after - before for before, after in pairwise(ticker.times)]
            lengths += [min(made, job.output_len) for job in batch]
        return Turn(self.clock() - begin, tuple(steps), tuple(lengths))

    def _generate(self, jobs: Sequence[Job], ticker: _Ticker) -> int:
        """Generate for a batch; returns the number of tokens that each row got."""
        width = max(len(job.prompt) for job in jobs)
        tokens = torch.zeros((len(jobs), width), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, job in enumerate(jobs):
            tokens[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, width - len(job.prompt) :] = 1
        output: Tensor = self.network.generate(  # type: ignore[operator]
            tokens.to(self.network.device),
            attention_mask=mask.to(self.network.device),
            max_new_tokens=max(job.output_len for job in jobs),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([ticker]),
            do_sample=False,
        )
        return output.shape[1] - width


def join_batcher(slots: int) -> Batcher:
    """The batcher of `serve --strategy baton-pd`."""
    limits = Limits(group_tokens=CHUNK_TOKENS, prefill_ahead=max(1, slots // 8))
    return assemble(STRATEGIES["baton-pd"], limits).batcher


class _Ticker(StoppingCriteria):
    """Reads the clock at every step of `generate`; never ends it but by an interrupt."""

    def __init__(self, clock: Clock, stop: threading.Event) -> None:
        self._clock = clock
        self._stop = stop
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        if self._stop.is_set():
            raise Interrupted
        self.times.append(self._clock())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


Jobs = Callable[[int], Sequence[Job]]
"""The jobs of a round, by its number; other prompts each time, of the same lengths."""


@dataclass(slots=True)
class Standing:
    """The figures of one runner so far."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Tokens/s of each round that counts: tokens asked for, over all of the time."""
    steps: list[float] = field(default_factory=list)
    """Median seconds of a step, a figure a round."""
    trouble: str | None = None
    """Why it cannot run here, if it cannot."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def contest(
    runners: Sequence[Runner], jobs: Jobs, rounds: int, watch: Callable[[], None] = lambda: None
) -> list[Standing]:
    """Play a round that warms up, then `rounds` that count; each begins with another runner.

    A runner that fails says why and is left out from then on.
    """
    standings = [Standing(runner.name) for runner in runners]
    pairs = list(zip(runners, standings, strict=True))
    for number in range(rounds + 1):
        work = jobs(number)
        first = number % len(pairs)
        for runner, standing in (*pairs[first:], *pairs[:first]):
            if standing.trouble is None:
                _take_turn(runner, standing, work, counts=number > 0)
            watch()
    return standings


def _take_turn(runner: Runner, standing: Standing, jobs: Sequence[Job], *, counts: bool) -> None:
    try:
        turn = runner.run(jobs)
        _check(turn, jobs)
    except Exception as error:
        standing.trouble = f"{type(error).__name__}: {error}"
        return
    if counts:
        standing.rates.append(sum(job.output_len for job in jobs) / turn.seconds)
        standing.steps.append(statistics.median(turn.steps or (0.0,)))


def _check(turn: Turn, jobs: Sequence[Job]) -> None:
    wanted = tuple(job.output_len for job in jobs)
    if turn.lengths != wanted:
        wrong = sum(made != want for made, want in zip(turn.lengths, wanted, strict=True))
        raise RuntimeError(f"{wrong} of {len(wanted)} answers have another length than was asked for")
