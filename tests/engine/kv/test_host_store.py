"""Host memory for K and V has a bound, and whatever finds no place in it is computed again: no request is lost."""

import math
from dataclasses import replace

import pytest
import torch

from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.kv.row_kv import RowKv
from engine.messages import BatchPolicy, Entry, Overflow, RowId
from engine.row import Row
from models.text import Text
from tests.engine.rows import answers_of, lifecycle_of, row_of, run_all, spec, tokens_of
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
    taken = [store.take(row.row_id) for row in rows]
    assert [place for place, one in enumerate(taken) if one is not None and one.kv is not None] == [1, 3]
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


OPEN = [BatchPolicy(), BatchPolicy(entry=Entry.SHAPE)]
TERMS = [*OPEN, CLOSED, replace(CLOSED, iterations=3), replace(CLOSED, overflow=Overflow.SPLIT)]


@pytest.mark.parametrize("arena", [KvArena, Scant])
@pytest.mark.parametrize("tokens", [0, 20, math.inf])
@pytest.mark.parametrize("terms", TERMS, ids=["embed", "shape", "closed", "sliced", "split"])
def test_lack_of_host_memory_changes_nothing(net: Net, arena: type[KvArena], tokens: float, terms: BatchPolicy) -> None:
    store: HostStore[Row] = HostStore(tokens * net.model.kv.bytes_per_token)
    lifecycle = lifecycle_of(*net, capacity=64, rows=4, chunk=32, store=store, arena=arena)
    made, handed_back = run_all(lifecycle, SPECS, terms)
    assert len(store) == 0 and store.bytes == 0
    assert tokens_of(made) == answers_of(lifecycle_of(*net), SPECS)
    if arena is Scant or tokens == 0:
        assert handed_back, "what found no host memory"
