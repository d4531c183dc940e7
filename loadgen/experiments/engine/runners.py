"""The engines to compare, this engine and transformers' `generate`, and the rounds in which they take turns at the same
jobs, so that what else the machine does troubles all alike.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from engine.pipeline import Pipeline
from loadgen.experiments.engine.feed import Job, Turn, feed, longest, make_requests
from loadgen.experiments.engine.measure import Interrupted, apart, torch_threads
from loadgen.experiments.engine.setup import CHUNK_TOKENS, Subject
from scheduler.assembly import assemble
from scheduler.batching.batcher import Batcher, Limits
from scheduler.strategy import STRATEGIES

Clock = Callable[[], float]


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
            columns = longest([(len(job.prompt), job.output_len) for job in jobs])
            self._pipeline = self.subject.pipeline(self.slots, columns)
        requests, steps, end = make_requests(jobs), [], 0.0
        with torch_threads(1 if self.subject.model.reads_exactly else torch.get_num_threads()):  # as the server has it
            for moment in feed(self._pipeline, join_batcher(self.slots), requests, self.clock):
                if stop.is_set():
                    raise Interrupted
                end = moment.at
                if moment.tally.generated and not moment.tally.prompt:
                    steps.append(moment.seconds)
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
        ticks, lengths = [], []
        for first in range(0, len(jobs), self.slots):
            batch = jobs[first : first + self.slots]
            ticker = _Ticker(self.clock, stop)
            made = self._generate(batch, ticker)
            ticks.append(ticker.times)
            lengths += [min(made, job.output_len) for job in batch]
        return Turn(self.clock() - begin, tuple(_gaps(ticks)), tuple(lengths))

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
            **_sampling_flags(jobs),
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


def _sampling_flags(jobs: Sequence[Job]) -> dict[str, Any]:
    """The sampling of the jobs, which is the same for all, as transformers' GenerationConfig has it."""
    asked = jobs[0].sampling
    if asked.temperature == 0:
        return {"do_sample": False}
    flags = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": max(asked.top_k, 0)}
    return {"do_sample": True, **flags, "min_p": asked.min_p or None, "repetition_penalty": asked.repetition_penalty}


def _gaps(ticks: Sequence[Sequence[float]]) -> list[float]:
    return [after - before for times in ticks for before, after in zip(times, times[1:], strict=False)]


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

    @property
    def step(self) -> float:
        return statistics.median(self.steps)


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
