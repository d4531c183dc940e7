"""A simulated executor under a test's clock: prefill takes 1 s and an iteration 0.1 s unless a test says otherwise."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.messages import Command, Report, RowId, RowSpec, RowUpdate, StepReport, StepStats
from engine.sampling.params import SamplingParams
from engine.simulated.batch import SimulatedKv, SimulatedRow
from engine.simulated.executor import SimulatedExecutor
from engine.simulated.machine import Cost, Machine
from scheduler.serving_time.bilinear import Bilinear
from tests.engine.invariants import check

STEADY = Bilinear(p1=0, p2=0, p3=0, p4=1.0, d1=0, d2=0, d3=0, d4=0.1)
"""Prefill 1 s, an iteration 0.1 s, whatever is in it."""

PER_COLUMN = Bilinear(p1=0, p2=0, p3=1.0, p4=0, d1=0, d2=0, d3=0, d4=0.1)
"""Prefill 1 s a column."""


def row(row_id: RowId, prompt: int, tokens: int, *, priority: int = 0) -> RowSpec:
    return RowSpec(row_id, (0,) * prompt, SamplingParams(1000, replay_tokens=tokens), priority)


class Device:
    """An executor, its clock and all that it reported."""

    def __init__(
        self,
        *,
        capacity: int = 10_000,
        rows: int = 8,
        cost: Cost = STEADY,
        headroom: int = 0,
        store: HostStore[SimulatedRow] | None = None,
        **sizes: Any,
    ) -> None:
        self.time = 0.0
        self.reports: list[tuple[float, StepReport]] = []
        machine = Machine(cost, capacity, rows, capacity, **sizes)
        prefixes = PrefixCache[SimulatedKv](0, chunk=1)
        kept: dict[str, Any] = {"prefixes": prefixes, "store": store, "headroom": headroom}
        self.executor = SimulatedExecutor(0, machine, lambda: self.time, self._note, **kept)

    def _note(self, report: Report) -> None:
        assert isinstance(report, StepReport)
        self.reports.append((self.time, report))

    def post(self, command: Command) -> Device:
        self.executor.post(command)
        return self

    def run(self, until: float = math.inf) -> Device:
        """Let time pass; with infinity until nothing is left to do."""
        while self.executor.due <= until and self.executor.due < math.inf:
            self.time = max(self.time, self.executor.due)
            self.executor.advance()
            check(self.executor._table)
        if until < math.inf:
            self.time = until
        return self

    @property
    def updates(self) -> list[tuple[float, RowUpdate]]:
        return [(time, update) for time, report in self.reports for update in report.updates]

    @property
    def first_tokens(self) -> dict[RowId, float]:
        return {update.row_id: round(time, 9) for time, update in reversed(self.updates) if update.token_ids}

    @property
    def ends(self) -> dict[RowId, float]:
        """When each row's last update came."""
        return {update.row_id: round(time, 9) for time, update in self.updates if update.finish_reason}

    @property
    def tokens(self) -> dict[RowId, int]:
        counts: defaultdict[RowId, int] = defaultdict(int)
        for _, update in self.updates:
            counts[update.row_id] += len(update.token_ids)
        return dict(counts)

    @property
    def handed_back(self) -> list[tuple[float, str, tuple[RowId, ...]]]:
        told = ((time, one) for time, report in self.reports for one in report.handed_back)
        return [(round(time, 9), one.cause.value, one.row_ids) for time, one in told]

    @property
    def tally(self) -> StepStats:
        return sum((report.tally for _, report in self.reports), StepStats())
