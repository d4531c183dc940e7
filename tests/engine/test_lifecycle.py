"""The way of rows through a device: who is where, who comes first, and who is hit when something goes wrong."""

import weakref
from collections.abc import Callable
from functools import partial

import pytest

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import RowSpec
from engine.row import Row
from engine.torch_device import TorchDevice
from models.network.loader import LoadedModel
from tests.engine.invariants import check
from tests.engine.rows import admitted, device_of, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

Run = Callable[..., Lifecycle[Row]]


class WatchedBatch(RunningBatch):
    """Notes who joins and who is taken out."""

    def __init__(self, model: LoadedModel, capacity: int, rows: int) -> None:
        super().__init__(model, KvArena(model.kv, capacity, max_rows=rows), headroom=0)
        self.log: list[str] = []

    def insert(self, row: Row, kv: RowKv, *, lasting: bool = True) -> None:
        super().insert(row, kv, lasting=lasting)
        self.log.append(f"in {row.row_id}")

    def extract(self, row: Row) -> RowKv:
        self.log.append(f"out {row.row_id}")
        return super().extract(row)


@pytest.fixture
def run(net: Net) -> Run:
    """Makes a lifecycle of the tiny model."""
    return partial(lifecycle_of, *net)


def alone(run: Run, one: RowSpec) -> list[int]:
    """Tokens that a row generates when nothing happens around it."""
    lifecycle = admitted(run(), [one])
    return tokens_of(finish(lifecycle))[one.row_id]


def serves(lifecycle: Lifecycle[Row], run: Run, one: RowSpec) -> None:
    """Whatever happened before, a new row generates what it should."""
    lifecycle.table.admit([one])
    assert tokens_of(finish(lifecycle)) == {one.row_id: alone(run, one)}


# Stages


def test_a_row_that_ends_with_its_first_token_never_enters_the_batch(net: Net) -> None:
    batch = WatchedBatch(net.model, 100, rows=4)
    lifecycle = Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=64))
    lifecycle.table.admit([spec(0, max_tokens=1), spec(1, max_tokens=2)])
    updates = finish(lifecycle)
    assert batch.log == ["in 1"]
    assert [len(tokens) for tokens in tokens_of(updates).values()] == [1, 2]


def test_running_rows_go_on_while_a_long_prompt_is_prefilled(run: Run) -> None:
    lifecycle = admitted(run(chunk=5), [spec(0, max_tokens=20)])
    lifecycle.turn()
    lifecycle.table.admit([spec(1, length=30)])
    turns = [[update.row_id for update in lifecycle.turn()] for _ in range(13)]
    assert turns == [[0], []] * 5 + [[0], [1], [0, 1]]


def test_rows_join_in_the_order_of_their_admission(net: Net) -> None:
    """Also when the prefill, which works longest first, ended a later one earlier."""
    batch = WatchedBatch(net.model, 400, rows=2)
    lifecycle = Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=1000))
    lifecycle.table.admit([spec(0, length=4), spec(1, length=9), spec(2, length=2), spec(3, length=30)])
    finish(lifecycle)
    assert batch.log == ["in 0", "in 1", "in 2", "in 3"]


def test_the_worst_ranked_row_leaves_for_lack_of_memory_and_returns_when_there_is_room(net: Net) -> None:
    """60 tokens hold three rows of 20 or two of 30. Row 3 has moved to the first place when it must leave."""
    batch = WatchedBatch(net.model, 60, rows=3)
    lifecycle = Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=1000))
    specs = [spec(0, 5, max_tokens=2), spec(1, 5, max_tokens=40), spec(2, 5, max_tokens=30), spec(3, 5, max_tokens=30)]
    lifecycle.table.admit(specs)
    updates = finish(lifecycle)
    assert batch.log == ["in 0", "in 1", "in 2", "in 3", "out 3", "out 2", "in 2", "in 3"]
    ended = [update.row_id for update in updates if update.finish_reason is not None]
    assert ended == [0, 1, 2, 3]


def test_log_probabilities_of_the_prompt_come_with_the_first_update_alone(run: Run) -> None:
    lifecycle = admitted(run(), [spec(0, 4, max_tokens=3, prompt_logprobs=1)])
    assert [update.prompt_logprobs is None for update in finish(lifecycle)] == [False, True, True]


# Cancellation


def test_a_row_that_is_cancelled_while_it_waits_is_never_computed(run: Run) -> None:
    lifecycle = admitted(run(), [spec(0), spec(1)])
    lifecycle.table.admit([spec(2)])
    lifecycle.table.cancel([0, 2, 99])
    check(lifecycle.table)
    assert tokens_of(finish(lifecycle)).keys() == {1}


def test_a_row_that_is_cancelled_in_prefill_gives_its_memory_back(run: Run) -> None:
    lifecycle = admitted(run(chunk=8), [spec(0, 40), spec(1, 30)])
    assert lifecycle.turn() == []
    group = device_of(lifecycle).prefill
    assert group is not None and group._keys.shape[1] * group._keys.shape[3] == 80
    lifecycle.table.cancel([1])
    assert group._keys.shape[1] * group._keys.shape[3] == 40
    gone = weakref.ref(group._keys)
    del group
    lifecycle.table.cancel([0])
    assert lifecycle.table.idle and gone() is None
    serves(lifecycle, run, spec(2, 20))


def test_a_row_that_is_cancelled_while_staged_gives_its_memory_back(run: Run) -> None:
    lifecycle = admitted(run(rows=1), [spec(0), spec(1)])
    lifecycle.turn()
    lifecycle.turn()
    assert (lifecycle.table.shape().rows, lifecycle.table.shape().staged) == (1, 1)
    (staged,) = lifecycle.table.staged
    assert staged.kv is not None
    gone = weakref.ref(staged.kv.keys)
    del staged
    lifecycle.table.cancel([1])
    assert gone() is None and lifecycle.table.shape().staged == 0
    assert tokens_of(finish(lifecycle)).keys() == {0}


def test_a_row_that_is_cancelled_while_it_runs_leaves_its_slot_and_its_mates_alone(run: Run) -> None:
    lifecycle = run(rows=2)
    specs = [spec(0, 12), spec(1, 5), spec(2, 3)]
    lifecycle.table.admit(specs)
    begun = lifecycle.turn() + lifecycle.turn()
    lifecycle.table.cancel([0])
    assert (device_of(lifecycle).batch.arena.live, device_of(lifecycle).batch.arena.window) == (1, 6)
    rest = finish(lifecycle)
    assert 0 not in tokens_of(rest)
    found = tokens_of(begun + rest)
    assert [found[1], found[2]] == [alone(run, specs[1]), alone(run, specs[2])]


def test_rows_of_every_stage_can_be_cancelled_at_once(run: Run) -> None:
    lifecycle = admitted(run(rows=1, chunk=8), [spec(0), spec(1)])
    lifecycle.turn()
    lifecycle.table.admit([spec(2, 40)])
    lifecycle.turn()
    lifecycle.table.admit([spec(3)])
    lifecycle.table.cancel([0, 1, 2, 3])
    assert lifecycle.table.idle
    serves(lifecycle, run, spec(4))
