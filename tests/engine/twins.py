"""The engine's device and the simulated one behind one face, for rules that must hold on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeAlias

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.messages import HandedBack, RowId, RowSpec, RowUpdate, Terms
from engine.pipeline import Pipeline
from engine.row import Row
from engine.simulated.batch import SimulatedBatch
from engine.simulated.pipeline import SimulatedPipeline
from engine.simulated.row import SimulatedRow
from engine.simulated.store import SimulatedStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.simulated.device import STEADY

CHUNK = 512
"""Tokens of a chunk of prefill."""


class _Batch(RunningBatch):
    left: Counter[RowId]

    def remove(self, row: Row, *, wipe: bool = False) -> None:
        self.left[row.row_id] += 1
        super().remove(row, wipe=wipe)


class _SimulatedBatch(SimulatedBatch):
    left: Counter[RowId]

    def remove(self, row: SimulatedRow) -> None:
        self.left[row.row_id] += 1
        super().remove(row)


class Twin(Protocol):
    """One device, moved on by hand."""

    def admit(self, specs: Iterable[RowSpec], terms: Terms) -> None: ...

    def step(self) -> list[RowUpdate]:
        """A chunk of prefill, or one decode iteration."""
        ...

    @property
    def running(self) -> list[RowId]: ...

    left: Counter[RowId]
    """How often each row has left the batch."""

    @property
    def handed_back(self) -> list[HandedBack]:
        """Since the last look."""
        ...


class Engine:
    def __init__(self, model: LoadedModel, text: Text, capacity: int, rows: int, headroom: int) -> None:
        batch = _Batch(model, KvArena(model.kv, capacity, max_rows=rows), headroom=headroom)
        self.left = batch.left = Counter()
        self._pipeline = Pipeline(model, text, batch, max_prefill_tokens=CHUNK)

    def admit(self, specs: Iterable[RowSpec], terms: Terms) -> None:
        self._pipeline.admit(specs, terms)

    def step(self) -> list[RowUpdate]:
        updates = self._pipeline.turn()
        self._pipeline.check()
        return updates

    @property
    def running(self) -> list[RowId]:
        return sorted(row.row_id for row in self._pipeline.batch.rows)

    @property
    def handed_back(self) -> list[HandedBack]:
        return list(self._pipeline.take_handed_back())


class Simulated:
    def __init__(self, capacity: int, rows: int, headroom: int) -> None:
        batch = _SimulatedBatch(capacity, rows, headroom)
        self.left = batch.left = Counter()
        self._pipeline = SimulatedPipeline(batch, STEADY, SimulatedStore(), CHUNK)

    def admit(self, specs: Iterable[RowSpec], terms: Terms) -> None:
        self._pipeline.admit(specs, terms)

    def step(self) -> list[RowUpdate]:
        work = self._pipeline.begin()
        if work is not None:
            self._pipeline.finish(replace(work, iterations=1))
        self._pipeline.check()
        updates, self._pipeline.outbox.updates = self._pipeline.outbox.updates, []
        return updates

    @property
    def running(self) -> list[RowId]:
        return sorted(self._pipeline.batch.rows)

    @property
    def handed_back(self) -> list[HandedBack]:
        handed_back, self._pipeline.outbox.handed_back = self._pipeline.outbox.handed_back, []
        return handed_back


MakeTwin: TypeAlias = Callable[[int, int, int], Twin]
"""(capacity in tokens, rows, headroom in columns) -> a device."""
