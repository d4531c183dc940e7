"""Short ways to write rows and to run them to their end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import OutOfMemoryError, Tensor

from engine.device import RowT
from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill, Prefilled
from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, FinishReason, HandedBack, RowId, RowSpec, RowUpdate
from engine.row import Row
from engine.sampling.params import SamplingParams
from engine.torch_device import TorchDevice
from models.catalog.catalog import DEFAULT_MODEL, Catalog
from models.network.attention import Mask
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.invariants import check

END_TOKEN = 2
"""The tiny model's."""


def default_folder() -> Path:
    if (folder := Catalog().find(DEFAULT_MODEL)) is None:
        pytest.skip(f"{DEFAULT_MODEL} is not in the cache: `lengthwise models pull` brings it")
    return folder


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
    arena: Callable[..., KvArena] = KvArena,
    **others: Any,
) -> Lifecycle[Row]:
    """No row yet, on a device of `capacity` tokens; `others` as TorchDevice has them."""
    batch = RunningBatch(model, arena(model.kv, capacity, max_rows=rows), headroom=headroom)
    return Lifecycle(TorchDevice(model, text, batch, chunk, **others), store)


def admitted(lifecycle: Lifecycle[RowT], *asked: Any) -> Lifecycle[RowT]:
    """With rows, on terms."""
    lifecycle.table.admit(*asked)
    return lifecycle


def device_of(lifecycle: Lifecycle[Row]) -> TorchDevice:
    """The device below, of which it knows the protocol alone."""
    assert isinstance(lifecycle.device, TorchDevice)
    return lifecycle.device


def turns(lifecycle: Lifecycle[RowT], count: int = 1) -> list[RowUpdate]:
    updates: list[RowUpdate] = []
    for _ in range(count):
        updates += lifecycle.turn()
        check(lifecycle.table)
    return updates


def finish(lifecycle: Lifecycle[RowT], *asked: Any, most: int = 1000) -> list[RowUpdate]:
    """All updates until nothing is left to do, of what is admitted on terms too."""
    updates: list[RowUpdate] = []
    if asked:
        lifecycle.table.admit(*asked)
    while not lifecycle.table.idle:
        assert most > 0, "it makes no progress"
        most -= 1
        updates += turns(lifecycle)
    return updates


def running(lifecycle: Lifecycle[RowT]) -> list[RowId]:
    return sorted(row.row_id for row in lifecycle.device.batch.rows)


def run_all(
    lifecycle: Lifecycle[Row], specs: Sequence[RowSpec], terms: BatchPolicy
) -> tuple[list[RowUpdate], list[HandedBack]]:
    """All updates of rows that are admitted again, on the same terms, whenever they are handed back; and when."""
    updates, found = list[RowUpdate](), list[HandedBack]()
    lifecycle.table.admit(specs, terms)
    while not lifecycle.table.idle:
        assert len(found) + len(updates) < 2000, "it makes no progress"
        updates += turns(lifecycle)
        for back in lifecycle.table.take_handed_back():
            found.append(back)
            lifecycle.table.admit([one for one in specs if one.row_id in back.row_ids], terms)
    return updates, found


def tokens_of(updates: list[RowUpdate]) -> dict[RowId, list[int]]:
    found: dict[RowId, list[int]] = {}
    for update in updates:
        found.setdefault(update.row_id, []).extend(update.token_ids)
    return found


def answers_of(lifecycle: Lifecycle[Row], *asked: Any) -> dict[RowId, list[int]]:
    """All tokens of rows that are admitted on terms."""
    return tokens_of(finish(lifecycle, *asked))


def lengths_of(updates: list[RowUpdate]) -> dict[RowId, int]:
    return {row_id: len(tokens) for row_id, tokens in tokens_of(updates).items() if tokens}


def read(
    model: LoadedModel, text: Text, specs: Sequence[RowSpec], *kept: Any, chunk: int = 512, **others: Any
) -> dict[RowId, Prefilled]:
    """Prompts that are read as one group, with what `Prefill` takes besides; each ends as it leaves the group."""
    group = Prefill(model, [Row(one, text, model.end_token_ids) for one in specs], *kept, **others)
    found: dict[RowId, Prefilled] = {}
    while group.rows:
        before, ended = group.rows.copy(), group.advance(chunk)
        assert [row for row in before if row not in group.rows] == [done.row for done in ended]
        found |= {done.row.row_id: done for done in ended}
    return found


def ends_of(updates: Iterable[RowUpdate]) -> dict[RowId, FinishReason]:
    """How rows ended, in that order."""
    return {update.row_id: update.finish_reason for update in updates if update.finish_reason is not None}


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


def failing(
    model: LoadedModel, error: Exception, fails: Callable[[KvStore, Tensor], bool] = lambda *_: True
) -> FaultyModel:
    """A network whose passes fail of which this is true."""

    def fault(store: KvStore, logits: Tensor) -> Tensor:
        if fails(store, logits):
            raise error
        return logits

    return faulty(model, fault)


def short_in(model: LoadedModel, kind: type, *calls: int) -> FaultyModel:
    """A network of which these passes over a store of the kind, counted from 0, find no memory."""
    passes, error = count(), OutOfMemoryError("CUDA out of memory (injected)")
    return failing(model, error, lambda store, _: isinstance(store, kind) and next(passes) in calls)
