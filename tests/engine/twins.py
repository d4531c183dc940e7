"""The rules of a row's life on the engine's device and on the simulated one, behind one face."""

import math
from collections.abc import Iterable
from typing import Generic, Protocol, TypeAlias

from engine.device import RowT
from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, HandedBack, RowId, RowSpec, RowUpdate
from engine.row import Row
from engine.simulated.batch import SimulatedBatch, SimulatedRow
from engine.simulated.device import SimulatedDevice
from engine.torch_device import TorchDevice
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.invariants import check
from tests.engine.simulated.device import STEADY

CHUNK = 512
"""Tokens of a chunk of prefill."""


class Twin(Generic[RowT]):
    """One device, moved on by hand."""

    def __init__(self, lifecycle: Lifecycle[RowT]) -> None:
        self.lifecycle = lifecycle
        self.table = lifecycle.table
        self.device = lifecycle.device

    def admit(self, specs: Iterable[RowSpec], terms: BatchPolicy) -> None:
        self.table.admit(specs, terms)

    def step(self) -> list[RowUpdate]:
        """A chunk of prefill, or one decode iteration."""
        updates = self.lifecycle.turn()
        check(self.table)
        return updates

    @property
    def running(self) -> list[RowId]:
        return sorted(row.row_id for row in self.device.batch.rows)

    @property
    def handed_back(self) -> list[HandedBack]:
        """Since the last look."""
        return list(self.table.take_handed_back())


def engine_twin(
    model: LoadedModel, text: Text, capacity: int, rows: int, headroom: int, host_bytes: float = math.inf
) -> Twin[Row]:
    batch = RunningBatch(model, KvArena(model.kv, capacity, max_rows=rows), headroom=headroom)
    return Twin(Lifecycle(TorchDevice(model, text, batch, CHUNK), HostStore(host_bytes)))


def simulated_twin(capacity: int, rows: int, headroom: int, host_bytes: float = math.inf) -> Twin[SimulatedRow]:
    batch = SimulatedBatch(capacity, rows, headroom)
    return Twin(Lifecycle(SimulatedDevice(batch, STEADY, CHUNK, PrefixCache(0, chunk=1)), HostStore(host_bytes)))


AnyTwin: TypeAlias = Twin[Row] | Twin[SimulatedRow]


class MakeTwin(Protocol):
    """A device of so many tokens, rows and columns of headroom, beside so many bytes of host memory."""

    def __call__(self, capacity: int, rows: int, headroom: int, host_bytes: float = ...) -> AnyTwin: ...
