"""The share of a decode step that is spent outside the network's forward pass."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from loadgen.experiments.engine.apart import Interrupted, apart
from loadgen.experiments.engine.feed import Feed
from loadgen.experiments.engine.floor import read_clock
from loadgen.experiments.engine.job import Job, longest
from loadgen.experiments.engine.runners import join_batcher
from loadgen.experiments.engine.setup import Subject
from models.network.attention import Mask
from models.network.kv_adapter import KvStore
from models.network.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians over the decode steps in which every row ran."""

    rows: int
    steps: int
    step: float
    """Seconds of a turn: the forward pass, sampling, text, bookkeeping."""
    forward: float
    """Seconds of its forward pass."""
    share: float
    """The part of a turn spent outside its forward pass, from 0 to 1."""


@dataclass(frozen=True)
class TimedModel(LoadedModel):
    """A network that notes how long its forward passes take."""

    clock: Callable[[], float] = time.perf_counter
    passes: list[float] = field(default_factory=list)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Mask,
        store: KvStore,
        select: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        begin = read_clock(self.device, self.clock)
        logits = super().forward(tokens, positions, mask, store, select)
        self.passes.append(read_clock(self.device, self.clock) - begin)
        return logits


def measure_overhead(subject: Subject, jobs: Sequence[Job], clock: Callable[[], float] = time.perf_counter) -> Overhead:
    """Run all jobs side by side and look at the steps that decode all of them."""
    return apart(lambda stop: _measure(subject, jobs, clock, stop))


@torch.inference_mode()
def _measure(subject: Subject, jobs: Sequence[Job], clock: Callable[[], float], stop: threading.Event) -> Overhead:
    model = TimedModel(**{one.name: getattr(subject.model, one.name) for one in fields(subject.model)}, clock=clock)
    pipeline = subject.pipeline(len(jobs), longest(jobs), model)
    feed = Feed(pipeline, join_batcher(len(jobs)), jobs, clock, device=str(subject.device))
    steps: list[tuple[float, float]] = []
    for moment in feed.run():
        if stop.is_set():
            raise Interrupted
        forward = sum(model.passes)
        model.passes.clear()
        if moment.tally.generated == len(jobs) and not moment.tally.prompt:
            steps.append((moment.seconds, forward))
    return Overhead(
        rows=len(jobs),
        steps=len(steps),
        step=statistics.median(step for step, _ in steps),
        forward=statistics.median(forward for _, forward in steps),
        share=statistics.median(1 - forward / step for step, forward in steps),
    )
