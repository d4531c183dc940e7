"""Small loads on a small simulated machine, on which it shows by what the strategies of a family differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from engine.messages import Report, RowId, StepReport
from loadgen.simulate.node import Machine
from loadgen.simulate.simulation import simulate
from loadgen.workload.lengths import Lengths
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.length.oracle import true_length
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES, Length

COST = Bilinear(p1=1e-3, p2=0.0, p3=0.0, p4=0.05, d1=1e-5, d2=2e-3, d3=0.0, d4=0.05)
"""Seconds of a machine whose steps take some 60 ms, as a small CPU's."""

CAPACITY, CONTEXT = 1200, 300
"""Tokens of memory, and of the longest request: four of these fit."""

SHORT, LONG = 12, 90
"""Tokens of the answers of most requests."""


@dataclass(frozen=True, slots=True)
class Family:
    """Strategies to be shown side by side, the load that shows how they differ, and how many executors serve it."""

    strategies: tuple[str, ...]
    load: Sequence[Lengths]
    workers: int = 1
    slots: int = 4


@dataclass(frozen=True, slots=True)
class Line:
    """How one request was served; times in seconds after the first arrival."""

    arrival: float
    end: float
    output_length: int
    client: str
    held: tuple[tuple[float, float], ...]
    """When it was on an executor: from its prompt's begin, or its return, to its end or to when it had to leave."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """How a strategy served a load, a line a request in order of arrival."""

    strategy: str
    lines: tuple[Line, ...]

    @property
    def mean(self) -> float:
        """Seconds from arrival to last token."""
        return fmean(line.end - line.arrival for line in self.lines)

    @property
    def end(self) -> float:
        return max(line.end for line in self.lines)


class _Holds:
    """Notes when rows are on an executor."""

    def __init__(self) -> None:
        self.closed: defaultdict[RowId, list[tuple[float, float]]] = defaultdict(list)
        self._open: dict[RowId, float] = {}

    def note(self, report: Report, now: float) -> None:
        if not isinstance(report, StepReport):
            return
        for row in (*report.begun, *(update.row_id for update in report.updates)):
            self._open.setdefault(row, now - report.seconds)
        ended = (update.row_id for update in report.updates if update.finish_reason is not None)
        back = (row for one in report.handed_back for row in one.row_ids)
        for row in (*back, *report.extracted, *ended):
            if row in self._open:
                self.closed[row].append((self._open.pop(row), now))


def _load(outputs: Sequence[int], every: float, prompts: Sequence[int] = (20, 60, 30, 45)) -> tuple[Lengths, ...]:
    """Requests of these answers, one every so many seconds."""
    return tuple(Lengths(i * every, prompts[i % len(prompts)], output) for i, output in enumerate(outputs))


MIXED = (LONG, SHORT, 40, SHORT, LONG, SHORT, SHORT, 60, SHORT, LONG, SHORT, SHORT, 30, SHORT)

_GREEDY = tuple(Lengths(0.05 * i, 30, 40, "one") for i in range(10))
_MODEST = tuple(Lengths(0.3 + 1.5 * i, 30, 25, "another") for i in range(4))

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "closed-batches": Family(("vs", "magnus", "baton-pd"), _load(MIXED, 0.0), slots=10),
        "slices": Family(("sls", "scls", "ils"), _load(MIXED, 0.0), workers=2),
        "joining": Family(("vs", "baton", "baton-pd"), _load(MIXED, 0.3, prompts=(20, 200, 40, 180))),
        "orders": Family(("baton-pd", "srpt", "lengthwise"), _load(MIXED, 0.1)),
        "sharing": Family(("baton-pd", "fair"), sorted((*_GREEDY, *_MODEST), key=lambda one: one.arrival)),
    }
)


def play(family: Family) -> list[Timeline]:
    """Each strategy on the family's load, with the true lengths as predictions where it asks for them."""
    machine = Machine(COST, CAPACITY, family.slots, CONTEXT, family.workers)
    limits = Limits(group_tokens=256, prefill_ahead=2, slice_length=24).within(CAPACITY, CONTEXT, family.slots)
    return [_play(name, family.load, machine, limits) for name in family.strategies]


def _play(name: str, load: Sequence[Lengths], machine: Machine, limits: Limits) -> Timeline:
    holds = _Holds()
    predict = None if STRATEGIES[name].length is Length.NONE else true_length
    parts = assemble(STRATEGIES[name], limits, COST)
    done = simulate(parts, machine, load, CONTEXT, predict=predict, note=holds.note)
    rows = sorted(holds.closed)  # numbered as they came
    lines = (
        Line(one.arrival, one.end, one.output_length, asked.client, tuple(holds.closed[row]))
        for row, one, asked in zip(rows, done.requests, load, strict=True)
    )
    return Timeline(name, tuple(lines))
