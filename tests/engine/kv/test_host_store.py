"""Host memory for K and V has a bound, and whatever finds no place in it is computed again: no request is lost."""

import math
from dataclasses import replace

import pytest
import torch

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Cause, Entry, Overflow, RowId, RowSpec, RowUpdate
from engine.row import Row
from engine.torch_device import TorchDevice
from models.text import Text
from tests.engine.invariants import check
from tests.engine.rows import admitted, finish, lifecycle_of, row_of, spec, tokens_of
from tests.tiny import Net

CLOSED = BatchPolicy(closed=True)
SPECS = [replace(spec(row_id, 4 + 3 * row_id, max_tokens=12), priority=row_id % 2) for row_id in range(5)]


def ranked(text: Text, row_id: RowId, priority: int) -> Row:
    row = row_of(text)
    row.row_id, row.rank = row_id, (priority, row_id)
    return row


def kv_of(size: int) -> RowKv:
    """K and V of `size` bytes, an even number."""
    return RowKv(*(torch.zeros((1, 1, size // 2, 1), dtype=torch.int8) for _ in range(2)))


def kept(store: HostStore[Row], row: Row, size: int) -> bool:
    """Whether a row's K and V found a place."""
    lent = store.lend(row, size)
    row.kv = kv_of(size) if lent else None
    store.keep(row)
    return lent


def test_the_worst_ranked_lose_theirs_first_and_only_to_a_better_one(tiny_text: Text) -> None:
    store: HostStore[Row] = HostStore(100)
    rows = [ranked(tiny_text, row_id, priority) for row_id, priority in enumerate([2, 1, 1, 0, 3])]
    assert kept(store, rows[0], 40) and kept(store, rows[1], 40)
    assert not kept(store, rows[4], 40), "worse than all that are there"
    assert kept(store, rows[3], 50) and store.bytes == 90
    assert not kept(store, rows[2], 50), "the only worse one has none any more"
    assert [(one := store.take(row.row_id)) is not None and one.kv is not None for row in rows] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert len(store) == 0


def test_what_is_lent_counts_once_until_it_is_returned(tiny_text: Text) -> None:
    store: HostStore[Row] = HostStore(100)
    row, other = ranked(tiny_text, 0, 1), ranked(tiny_text, 1, 0)
    assert store.lend(row, 60) and store.lend(row, 70) and store.bytes == 70
    assert not store.lend(other, 40), "what a row on an executor has cannot be taken from it"
    store.give_back(row.row_id)
    assert store.lend(other, 40)


class Scant(KvArena):
    """A device whose host has no memory left for K and V of one row or another."""

    def extract(self, row: int) -> RowKv:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory (injected)")


def answers(
    lifecycle: Lifecycle[Row], store: HostStore[Row], terms: BatchPolicy
) -> tuple[dict[RowId, list[int]], list[Cause]]:
    """All tokens, rows that are handed back being admitted again at once, and why they were."""
    lifecycle.table.admit(SPECS, terms)
    specs: dict[RowId, RowSpec] = {one.row_id: one for one in SPECS}
    updates: list[RowUpdate] = []
    causes: list[Cause] = []
    for _ in range(2000):
        if lifecycle.table.idle:
            break
        updates += lifecycle.turn()
        check(lifecycle.table)
        assert store.bytes <= store._capacity
        for one in lifecycle.table.take_handed_back():
            causes.append(one.cause)
            for row_id in one.row_ids:
                lifecycle.table.admit([specs[row_id]], terms)
    assert lifecycle.table.idle and len(store) == 0 and store.bytes == 0
    return tokens_of(updates), causes


TERMS = [
    BatchPolicy(),
    BatchPolicy(entry=Entry.SHAPE),
    CLOSED,
    replace(CLOSED, iterations=3),
    replace(CLOSED, overflow=Overflow.SPLIT),
]


@pytest.mark.parametrize("arena", [KvArena, Scant])
@pytest.mark.parametrize("tokens", [0, 20, math.inf])
@pytest.mark.parametrize("terms", TERMS, ids=["embed", "shape", "closed", "sliced", "split"])
def test_lack_of_host_memory_changes_nothing(net: Net, arena: type[KvArena], tokens: float, terms: BatchPolicy) -> None:
    store: HostStore[Row] = HostStore(tokens * net.model.kv.bytes_per_token)
    batch = RunningBatch(net.model, arena(net.model.kv, 64, max_rows=4), headroom=0)
    lifecycle = Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=32), store)
    made, causes = answers(lifecycle, store, terms)
    alone = lifecycle_of(*net)
    alone.table.admit(SPECS)
    assert made == tokens_of(finish(alone))
    if arena is Scant or tokens == 0:
        assert causes, "what found no host memory was handed back"


def test_a_paused_row_that_cannot_be_copied_is_read_again(net: Net) -> None:
    batch = RunningBatch(net.model, Scant(net.model.kv, 200, max_rows=4))
    lifecycle = admitted(Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=32)), SPECS[:2])
    for _ in range(3):
        lifecycle.turn()
    lifecycle.table.pause([0])
    (handed_back,) = lifecycle.table.take_handed_back()
    assert (handed_back.row_ids, handed_back.dropped) == ((0,), (0,))
    assert [row.row_id for row in batch.rows] == [1]
    check(lifecycle.table)
