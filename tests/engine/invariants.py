"""What must hold between any two turns of a lifecycle."""

from functools import singledispatch
from itertools import chain
from typing import Any

import torch

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.rows import RowTable
from engine.simulated.batch import SimulatedBatch


@singledispatch
def check(thing: object) -> None:
    raise TypeError(f"nothing is known of {type(thing).__name__}")


@check.register
def _(table: RowTable) -> None:  # type: ignore[type-arg]
    """Every row is in exactly one place."""
    device: Any = table._device
    check(device.batch)
    waiting = chain(*table.unread, table.staged, table.to_enter)
    places = [row.row_id for row in (*device.batch.rows, *device.prefilling, *waiting)]
    assert sorted(places) == sorted(table.rows)
    assert table.closed is None or any(table.open_rows())
    assert table._store.bytes <= table._store._capacity


@check.register
def _(batch: RunningBatch) -> None:
    check(batch.arena)
    assert len(batch.rows) == batch.arena.live
    for row, length in zip(batch.rows, batch.arena.lengths, strict=True):
        most = length if row.ended else row.cached_tokens + batch.ahead
        assert row.cached_tokens <= length <= most, f"row {row.row_id}"


@check.register
def _(batch: SimulatedBatch) -> None:
    assert len(batch) * batch.window <= batch.capacity_tokens


@check.register
def _(arena: KvArena) -> None:
    """As its docstring says; reads all memory."""
    assert arena.live <= arena.rows and arena.rows * arena.columns <= arena.capacity_tokens
    assert all(0 <= arena.start <= origin <= arena.end <= arena.pitch <= arena.columns for origin in arena.origins)
    assert not arena.valid[arena.live :].any() and not arena.valid[:, arena.end :].any()
    for row, (origin, length) in enumerate(zip(arena.origins, arena.lengths, strict=True)):
        own = arena.valid[row].nonzero().flatten().tolist()
        assert len(own) == length and own[0] == origin and own[-1] == arena.end - 1, f"row {row}"
    for buffer in arena.buffers:
        assert buffer.dtype == arena.shape.dtype and buffer.device.type == arena.shape.device.type
        assert bool(torch.isfinite(buffer).all())
    assert arena.buffers[0].data_ptr() == arena._flat_keys.data_ptr()
    assert arena.valid.data_ptr() == arena._flat_valid.data_ptr()


@check.register
def _(cache: PrefixCache) -> None:  # type: ignore[type-arg]
    """Blocks can be reached, go before their parents, and keep within the bound."""
    order = {node: (node.used, node.use) for node in cache._children.values()}
    assert set(order) <= {node for *place, node in cache._oldest if tuple(place) == order.get(node)}
    assert all(isinstance(node.parent, str) or order[node.parent] > place for node, place in order.items())
    assert cache.bytes == sum(node.block.bytes for node in order) <= cache.capacity
