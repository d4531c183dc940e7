"""A race: one run of one method over one query set, with its time, its curves and its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch

from engine.messages import Tally
from loadgen.experiments.baton.paper import STRATEGIES
from loadgen.experiments.engine.feed import Feed, Moment
from loadgen.experiments.engine.job import Job, longest
from loadgen.experiments.engine.setup import CHUNK_TOKENS, Subject
from loadgen.html.plot import Point
from scheduler import strategy
from scheduler.assembly import assemble
from scheduler.batching.batcher import Batcher, Limits

ROOM = 4
"""Times the longest prompt and answer that K and V have columns for, so that no method is short of memory: the holes
of shape insertion need more than the rows themselves."""

PREFILL_AHEAD = 1

Advance = Callable[[int], None]
"""Told how many queries have just completed."""

Curves: TypeAlias = Mapping[str, tuple[Point, ...]]
"""The curves of the paper's Figures 6 to 8, over seconds since the start: queries answered so far (`completed`), tokens
of answers so far (`tokens`), and K and V of the running batch, padding included (`kv_bytes`)."""


@dataclass(frozen=True, slots=True)
class Race:
    """One run of one method."""

    method: str
    batch_size: int
    seconds: float
    """Completion time of the whole set."""
    curves: Curves
    tally: Tally
    """All that was computed."""
    answers: tuple[tuple[int, ...], ...]
    """Token ids, in the queries' order."""

    @property
    def peak_kv_bytes(self) -> float:
        return max(point.y for point in self.curves["kv_bytes"])


@torch.inference_mode()
def race(
    subject: Subject,
    method: str,
    batch_size: int,
    jobs: Sequence[Job],
    clock: Callable[[], float] = time.perf_counter,
    advance: Advance = lambda _: None,
) -> Race:
    """Run all queries, which are there from the start. Raises UserError when one fails."""
    pipeline = subject.pipeline(batch_size, ROOM * longest(jobs))
    feed = Feed(pipeline, _batcher(method), jobs, clock, device=str(subject.device))
    moments = []
    for moment in feed.run():
        moments.append(moment)
        advance(moment.ended)
    return Race(
        method=method,
        batch_size=batch_size,
        seconds=moments[-1].at,
        curves=_curves(moments, subject.model.kv.bytes_per_token),
        tally=sum((moment.tally for moment in moments), Tally()),
        answers=tuple(tuple(answer) for answer in feed.answers),
    )


def warm_up(subject: Subject, batch_size: int, jobs: Sequence[Job]) -> None:
    """Let the first run find everything as the others do."""
    few = [Job(job.prompt, 2) for job in jobs[:batch_size]]
    for method in STRATEGIES:
        race(subject, method, batch_size, few)


def _batcher(method: str) -> Batcher:
    limits = Limits(group_tokens=CHUNK_TOKENS, prefill_ahead=PREFILL_AHEAD)
    return assemble(strategy.STRATEGIES[STRATEGIES[method]], limits).batcher


def _curves(moments: Sequence[Moment], bytes_per_token: int) -> Curves:
    times = [0.0, *(moment.at for moment in moments)]
    cells = (moment.shape.rows * (moment.shape.end - moment.shape.start) for moment in moments)
    values: dict[str, Iterable[float]] = {
        "completed": accumulate((moment.ended for moment in moments), initial=0),
        "tokens": accumulate((moment.tally.generated for moment in moments), initial=0),
        "kv_bytes": (0, *(count * bytes_per_token for count in cells)),
    }
    return {name: tuple(map(Point, times, own)) for name, own in values.items()}
