"""Short ways to write rows and to run them to their end."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from torch import OutOfMemoryError, Tensor

from engine.device import RowT
from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.lifecycle import Lifecycle
from engine.messages import RowId, RowSpec, RowUpdate
from engine.row import Row
from engine.sampling.params import SamplingParams
from engine.torch_device import TorchDevice
from models.network.attention import Mask
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.invariants import check

END_TOKEN = 2
"""The tiny model's."""


def greedy(max_tokens: int = 8, **others: Any) -> SamplingParams:
    """Parameters of a row that is greedy and ends by length alone, unless said otherwise."""
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **others})


def spec(row_id: RowId, length: int = 3, max_tokens: int = 8, **others: Any) -> RowSpec:
    """A greedy row with a prompt of its own of `length` tokens."""
    prompt = tuple(3 + (7 * row_id + 3 * place) % 300 for place in range(length))
    return RowSpec(row_id, prompt, greedy(max_tokens, **others))


def row_of(text: Text, prompt: tuple[int, ...] = (5, 6, 7), **sampling: Any) -> Row:
    return Row(RowSpec(0, prompt, SamplingParams(**{"max_tokens": 100, **sampling})), text, frozenset({END_TOKEN}))


def lifecycle_of(
    model: LoadedModel,
    text: Text,
    *,
    capacity: int = 1000,
    rows: int = 8,
    chunk: int = 512,
    headroom: int = 0,
    store: HostStore[Row] | None = None,
    **others: Any,
) -> Lifecycle[Row]:
    """No row yet, on a device of `capacity` tokens; `others` as TorchDevice has them."""
    batch = RunningBatch(model, KvArena(model.kv, capacity, max_rows=rows), headroom=headroom)
    return Lifecycle(TorchDevice(model, text, batch, chunk, **others), store)


def admitted(lifecycle: Lifecycle[RowT], *asked: Any) -> Lifecycle[RowT]:
    """With rows, on terms."""
    lifecycle.table.admit(*asked)
    return lifecycle


def device_of(lifecycle: Lifecycle[Row]) -> TorchDevice:
    """The device below, of which it knows the protocol alone."""
    assert isinstance(lifecycle.device, TorchDevice)
    return lifecycle.device


def finish(lifecycle: Lifecycle[Row], *, turns: int = 1000) -> list[RowUpdate]:
    """All updates until nothing is left to do."""
    updates: list[RowUpdate] = []
    while not lifecycle.table.idle:
        assert turns > 0, "it makes no progress"
        turns -= 1
        updates += lifecycle.turn()
        check(lifecycle.table)
    return updates


def tokens_of(updates: list[RowUpdate]) -> dict[RowId, list[int]]:
    found: dict[RowId, list[int]] = {}
    for update in updates:
        found.setdefault(update.row_id, []).extend(update.token_ids)
    return found


@dataclass(frozen=True)
class FaultyModel(LoadedModel):
    """A network with a fault: what it computes goes through `fault`, which may change it or raise."""

    fault: Callable[[KvStore, Tensor], Tensor] = lambda store, logits: logits

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        return self.fault(store, super().forward(tokens, positions, mask, store, select))


def faulty(model: LoadedModel, fault: Callable[[KvStore, Tensor], Tensor]) -> FaultyModel:
    return FaultyModel(**{field.name: getattr(model, field.name) for field in fields(model)}, fault=fault)


def short_in(kind: type, *calls: int) -> Callable[[KvStore, Tensor], Tensor]:
    """A fault: these passes over a store of the kind, counted from 0, find no memory."""
    passes = count()

    def fault(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, kind) and next(passes) in calls:
            raise OutOfMemoryError("CUDA out of memory (injected)")
        return logits

    return fault
