"""The way of rows through a device: who is where, who comes first, and who is hit when something goes wrong."""

import weakref
from collections.abc import Callable
from functools import partial

import pytest

from engine.forward.batch import RunningBatch
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import RowSpec
from engine.row import Row
from tests.engine.invariants import check
from tests.engine.rows import admitted, answers_of, device_of, ends_of, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

Run = Callable[..., Lifecycle[Row]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who joins the batch and who is taken out."""
    log, insert, extract = list[str](), RunningBatch.insert, RunningBatch.extract

    def noted_insert(batch: RunningBatch, row: Row, kv: RowKv, *, lasting: bool = True) -> None:
        insert(batch, row, kv, lasting=lasting)
        log.append(f"in {row.row_id}")

    def noted_extract(batch: RunningBatch, row: Row) -> RowKv:
        log.append(f"out {row.row_id}")
        return extract(batch, row)

    monkeypatch.setattr(RunningBatch, "insert", noted_insert)
    monkeypatch.setattr(RunningBatch, "extract", noted_extract)
    return log


@pytest.fixture
def run(net: Net) -> Run:
    """Makes a lifecycle of the tiny model."""
    return partial(lifecycle_of, *net)


def serves(lifecycle: Lifecycle[Row], run: Run, one: RowSpec) -> None:
    """Whatever happened before, a new row generates what it should."""
    assert answers_of(lifecycle, [one]) == answers_of(run(), [one])


# Stages


def test_a_row_that_ends_with_its_first_token_never_enters_the_batch(run: Run, log: list[str]) -> None:
    answers = answers_of(run(), [spec(0, max_tokens=1), spec(1, max_tokens=2)])
    assert log == ["in 1"] and list(map(len, answers.values())) == [1, 2]


def test_running_rows_go_on_while_a_long_prompt_is_prefilled(run: Run) -> None:
    lifecycle = admitted(run(chunk=5), [spec(0, max_tokens=20)])
    lifecycle.turn()
    lifecycle.table.admit([spec(1, length=30)])
    turns = [[update.row_id for update in lifecycle.turn()] for _ in range(13)]
    assert turns == [[0], []] * 5 + [[0], [1], [0, 1]]


def test_rows_join_in_the_order_of_their_admission(run: Run, log: list[str]) -> None:
    """Also when the prefill, which works longest first, ended a later one earlier."""
    answers_of(run(rows=2), [spec(0, length=4), spec(1, length=9), spec(2, length=2), spec(3, length=30)])
    assert log == ["in 0", "in 1", "in 2", "in 3"]


def test_the_worst_ranked_leaves_for_lack_of_memory_and_returns_when_there_is_room(run: Run, log: list[str]) -> None:
    """60 tokens hold three rows of 20 or two of 30. Row 3 has moved to the first place when it must leave."""
    specs = [spec(row_id, 5, max_tokens) for row_id, max_tokens in enumerate((2, 40, 30, 30))]
    updates = finish(run(capacity=60, rows=3), specs)
    assert log == ["in 0", "in 1", "in 2", "in 3", "out 3", "out 2", "in 2", "in 3"]
    assert [*ends_of(updates)] == [0, 1, 2, 3]


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
    specs = [spec(0, 12), spec(1, 5), spec(2, 3)]
    lifecycle = admitted(run(rows=2), specs)
    begun = lifecycle.turn() + lifecycle.turn()
    lifecycle.table.cancel([0])
    assert (device_of(lifecycle).batch.arena.live, device_of(lifecycle).batch.arena.window) == (1, 6)
    rest = finish(lifecycle)
    assert 0 not in tokens_of(rest)
    alone = answers_of(run(), specs[1:2]) | answers_of(run(), specs[2:])
    assert tokens_of(begun + rest).items() >= alone.items()


def test_rows_of_every_stage_can_be_cancelled_at_once(run: Run) -> None:
    lifecycle = admitted(run(rows=1, chunk=8), [spec(0), spec(1)])
    lifecycle.turn()
    lifecycle.table.admit([spec(2, 40)])
    lifecycle.turn()
    lifecycle.table.admit([spec(3)])
    lifecycle.table.cancel([0, 1, 2, 3])
    assert lifecycle.table.idle
    serves(lifecycle, run, spec(4))
