"""The effect of each of a command's terms, in turns and numbers; that no answer changes is test_parity's business."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.lifecycle import Lifecycle
from engine.messages import NEVER, REPETITION, BatchPolicy, Cause, Entry, FinishReason, HandedBack, Overflow, RowUpdate
from engine.repetition import LEAST_TOKENS
from engine.row import Row
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine import rows as play
from tests.engine.rows import answers_of, device_of, ends_of, finish, lifecycle_of, running, spec, tokens_of, turns
from tests.tiny import Net

CLOSED = BatchPolicy(closed=True)
SHAPE = BatchPolicy(entry=Entry.SHAPE)


@pytest.fixture
def lifecycle(net: Net) -> Lifecycle[Row]:
    return lifecycle_of(*net, rows=4)


# Closed batches


def test_ended_rows_of_a_closed_batch_keep_their_slots_until_the_last_one_has(lifecycle: Lifecycle[Row]) -> None:
    lifecycle.table.admit([spec(0, max_tokens=2), spec(1, max_tokens=4)], CLOSED)
    turns(lifecycle, 2)
    assert running(lifecycle) == [0, 1] and lifecycle.table.tally.generated == 2
    turns(lifecycle)
    tally = lifecycle.table.tally
    assert running(lifecycle) == [0, 1] and (tally.generated, tally.invalid) == (1, 1)
    assert (tally.reads, tally.pad_reads, tally.invalid_reads) == (2 * 5, 0, 5)
    turns(lifecycle)
    assert running(lifecycle) == [] and lifecycle.table.idle


def test_a_closed_batch_may_be_read_in_groups_of_similar_length_but_starts_as_one(net: Net) -> None:
    lifecycle = lifecycle_of(*net, rows=4, chunk=12)
    lifecycle.table.admit([spec(0, 12), spec(1, 2), spec(2, 10), spec(3, 3)], replace(CLOSED, prefill_together=False))
    sizes = []
    while not device_of(lifecycle).batch.rows:
        turns(lifecycle)
        sizes.append(len(lifecycle.table.begun))
    assert [size for size in sizes if size] == [1, 1, 2]
    assert running(lifecycle) == [0, 1, 2, 3]
    finish(lifecycle)


def test_a_row_that_fails_does_not_keep_its_batch_from_ending(net: Net) -> None:
    def poison(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena) and len(logits) == 2 and store.end > 5:
            logits = logits.clone()
            logits[0] = torch.nan
        return logits

    lifecycle = lifecycle_of(play.faulty(net.model, poison), net.text)
    ends = ends_of(finish(lifecycle, [spec(0, max_tokens=9), spec(1, max_tokens=4)], CLOSED))
    assert ends == {0: FinishReason.ERROR, 1: FinishReason.LENGTH} and device_of(lifecycle).batch.arena.live == 0


def test_when_the_last_open_row_is_cancelled_the_batch_is_over(lifecycle: Lifecycle[Row]) -> None:
    lifecycle.table.admit([spec(0, max_tokens=1), spec(1, max_tokens=2), spec(2, max_tokens=50)], CLOSED)
    turns(lifecycle, 3)
    assert running(lifecycle) == [1, 2]
    lifecycle.table.cancel([2])
    assert lifecycle.table.idle


# Slices


def test_a_slice_ends_after_so_many_iterations_and_the_rest_goes_on_elsewhere(net: Net) -> None:
    store: HostStore[Row] = HostStore()
    here, there = (lifecycle_of(*net, capacity=500, rows=4, chunk=64, store=store) for _ in range(2))
    specs, sliced = [spec(0, max_tokens=3), spec(1, max_tokens=9)], replace(CLOSED, iterations=4)
    updates, handed_back = until_handed_back(here, specs, sliced)
    assert len(tokens_of(updates)[1]) == 5, "the prefill's token and four more"
    assert handed_back == HandedBack((1,), Cause.SLICE)
    assert here.table.idle and len(store) == 1 and store.bytes == 7 * net.model.kv.bytes_per_token
    updates += finish(there, [specs[1]], sliced)
    assert tokens_of(updates) == answers_of(lifecycle_of(*net), specs) and len(store) == 0


def until_handed_back(lifecycle: Lifecycle[Row], *asked: Any) -> tuple[list[RowUpdate], HandedBack]:
    """All updates until rows are handed back, and those."""
    updates: list[RowUpdate] = []
    if asked:
        lifecycle.table.admit(*asked)
    for _ in range(200):
        updates += turns(lifecycle)
        if handed_back := lifecycle.table.take_handed_back():
            return updates, handed_back[0]
    raise AssertionError("nothing was handed back")


def test_a_batch_whose_rows_all_end_within_the_slice_hands_nothing_back(lifecycle: Lifecycle[Row]) -> None:
    finish(lifecycle, [spec(0, max_tokens=3), spec(1, max_tokens=5)], replace(CLOSED, iterations=4))
    assert lifecycle.table.take_handed_back() == ()


@pytest.mark.parametrize("terms", [replace(CLOSED, iterations=60), replace(CLOSED, iterations=60, kept_from=NEVER)])
def test_a_repetition_is_noticed_across_slices(net: Net, terms: BatchPolicy) -> None:
    """Whether K and V are kept or recomputed, and while a row beside it takes its time."""
    dull = spec(0, max_tokens=400, ignore_eos=False, stop_repetition=True, logit_bias=((9, 100.0),))
    updates, _ = play.run_all(lifecycle_of(*net), [dull, spec(1, max_tokens=300)], terms)
    assert tokens_of(updates)[0] == [9] * LEAST_TOKENS
    reasons = [update.stop_reason for update in updates if update.finish_reason is not None]
    assert (ends_of(updates), reasons) == ({0: FinishReason.STOP, 1: FinishReason.LENGTH}, [REPETITION, None])


def test_rows_of_some_lengths_keep_their_k_and_v(net: Net) -> None:
    """They have 8 and 10 tokens after the slice, K and V of 9 of these."""
    store: HostStore[Row] = HostStore()
    lifecycle = lifecycle_of(*net, store=store)
    rows = [spec(0, 5, max_tokens=9), spec(1, 7, max_tokens=9)]
    _, handed_back = until_handed_back(lifecycle, rows, replace(CLOSED, iterations=2, kept_from=9))
    assert handed_back == HandedBack((0, 1), Cause.SLICE, dropped=(0,))
    assert store.bytes == 9 * net.model.kv.bytes_per_token
    lifecycle.table.admit(rows)
    turns(lifecycle)
    assert lifecycle.table.tally.prompt == 8


def sharing_a_store(model: LoadedModel, text: Text, *, chunk: int) -> tuple[Lifecycle[Row], Lifecycle[Row]]:
    """Two devices of one row each."""
    store: HostStore[Row] = HostStore()
    first, second = (lifecycle_of(model, text, capacity=500, rows=1, chunk=chunk, store=store) for _ in range(2))
    return first, second


def test_what_is_in_host_memory_outlives_its_device(net: Net) -> None:
    first, second = sharing_a_store(*net, chunk=64)
    first.table.admit([spec(0, max_tokens=9), spec(1, max_tokens=9)])
    updates = turns(first, 3)
    assert first.table.salvage() == (1,)
    second.table.admit([spec(1, max_tokens=9)])
    assert tokens_of(updates + finish(second))[1] == answers_of(lifecycle_of(*net), [spec(1, max_tokens=9)])[1]


def test_a_row_that_is_read_again_outlives_its_device(net: Net) -> None:
    """It was handed back without K and V, and its device is lost before it has been read, or while it is."""
    first, second = sharing_a_store(*net, chunk=4)
    rows = [spec(0, 6, max_tokens=9), spec(1, 6, max_tokens=9)]
    updates = list[RowUpdate]()
    for row in rows:
        updates += until_handed_back(first, [row], replace(CLOSED, iterations=2, kept_from=NEVER))[0]
    first.table.admit(rows[:1])
    updates += turns(first, 1)
    first.table.admit(rows[1:])
    assert sorted(first.table.salvage()) == [0, 1]
    second.table.admit(rows)
    assert tokens_of(updates + finish(second)) == answers_of(lifecycle_of(*net), rows)


def test_what_a_device_puts_by_that_was_given_up_is_nobody_s(net: Net) -> None:
    store: HostStore[Row] = HostStore()
    lifecycle = lifecycle_of(*net, store=store)
    lifecycle.table.admit([spec(0, max_tokens=9)])
    turns(lifecycle, 3)
    lifecycle.table.leave_store()
    lifecycle.table.pause([0])
    assert len(store) == 0


def test_slices_of_two_batches_that_wait_one_behind_the_other_both_get_on(lifecycle: Lifecycle[Row]) -> None:
    """Each held a row that came back and a new one; neither's new row was read while the other's waited: for ever."""
    sliced = replace(CLOSED, iterations=3)
    for row_id in (0, 1):
        until_handed_back(lifecycle, [spec(row_id, max_tokens=20)], sliced)
    lifecycle.table.admit([spec(0, max_tokens=20), spec(2, max_tokens=2)], sliced)
    lifecycle.table.admit([spec(1, max_tokens=20), spec(3, max_tokens=2)], sliced)
    assert until_handed_back(lifecycle)[1].row_ids == (0,)
    assert until_handed_back(lifecycle)[1].row_ids == (1,)


def test_a_row_that_was_taken_out_of_its_batch_goes_on_when_only_ended_rows_are_left(net: Net) -> None:
    rows = [spec(0, 20, max_tokens=6), spec(1, 20, max_tokens=6), spec(2, 10, max_tokens=20)]
    assert play.lengths_of(finish(lifecycle_of(*net, capacity=60, rows=3), rows, CLOSED)) == {0: 6, 1: 6, 2: 20}


def test_a_row_that_is_named_twice_is_paused_once(lifecycle: Lifecycle[Row]) -> None:
    lifecycle.table.admit([spec(0)])
    turns(lifecycle, 2)
    lifecycle.table.pause([0, 0])
    assert lifecycle.table.take_handed_back() == (HandedBack((0,), Cause.PAUSE),)


# Split


def test_a_batch_that_outgrows_the_device_is_handed_back_whole(net: Net) -> None:
    lifecycle = lifecycle_of(*net, capacity=40, rows=4)
    specs, terms = [spec(row_id, 4, max_tokens=30) for row_id in range(4)], replace(CLOSED, overflow=Overflow.SPLIT)
    lifecycle.table.admit(specs, terms)
    updates, handed_back = until_handed_back(lifecycle)
    assert handed_back == HandedBack((0, 1, 2, 3), Cause.OVERFLOW)
    assert play.lengths_of(updates) == dict.fromkeys(range(4), 7)
    assert play.lengths_of(finish(lifecycle, specs[:1], terms)) == {0: 23}


def test_a_shortage_of_memory_splits_too_and_lowers_the_budget(net: Net) -> None:
    short = torch.OutOfMemoryError("injected")
    model = play.failing(net.model, short, lambda store, _: isinstance(store, KvArena) and store.end == 6)
    lifecycle = lifecycle_of(model, net.text)
    _, handed_back = until_handed_back(lifecycle, [spec(0), spec(1)], replace(CLOSED, overflow=Overflow.SPLIT))
    assert handed_back == HandedBack((0, 1), Cause.OVERFLOW)
    assert lifecycle.table.shape().capacity_tokens == 900


# Shape


def test_rows_enter_by_shape_in_a_step_with_those_that_run(lifecycle: Lifecycle[Row], tiny_model: LoadedModel) -> None:
    lifecycle.table.admit([spec(0, 2)], SHAPE)
    assert [update.row_id for update in lifecycle.turn()] == [0]
    lifecycle.table.admit([spec(1, 5), spec(2, 3)], SHAPE)
    assert sorted(update.row_id for update in lifecycle.turn()) == [0, 1, 2]
    tally = lifecycle.table.tally
    assert (tally.prompt, tally.pad, tally.generated) == (8, 3 * 5 - 8 - 1, 3)
    assert lifecycle.table.begun == (1, 2)
    arena = device_of(lifecycle).batch.arena
    assert arena.lengths == [3, 5, 3] and arena.window == 7, "row 0 has holes"
    lifecycle.turn()
    reads = 8 + 6 + 4 if tiny_model.reads_exactly else 3 * 8
    tally = lifecycle.table.tally
    assert (tally.reads, tally.pad_reads) == (reads, reads - (4 + 6 + 4)), "holes are padding"
    finish(lifecycle)


def test_a_row_that_wants_its_prompt_scored_is_prefilled_instead(lifecycle: Lifecycle[Row]) -> None:
    (first, *_) = finish(lifecycle, [spec(0, 5, prompt_logprobs=1)], SHAPE)
    assert first.prompt_logprobs is not None and len(first.prompt_logprobs) == 5


# Priority


@pytest.mark.parametrize("terms", [BatchPolicy(), SHAPE])
def test_a_better_row_waits_for_a_slot_and_gets_the_next(net: Net, terms: BatchPolicy) -> None:
    lifecycle, updates = lifecycle_of(*net, rows=1), list[RowUpdate]()
    for asked, count in (({0: 5}, 2), ({1: 4, 2: 1}, 3)):
        lifecycle.table.admit([replace(spec(row, 3, 2 if row else 6), priority=at) for row, at in asked.items()], terms)
        updates += turns(lifecycle, count)
    assert running(lifecycle) == [0]
    assert [*ends_of(updates + finish(lifecycle))] == [0, 2, 1]


# Pause


def test_a_paused_row_is_handed_back_wherever_it_is(lifecycle: Lifecycle[Row]) -> None:
    lifecycle.table.admit([spec(0), spec(1)])
    turns(lifecycle, 2)
    lifecycle.table.admit([spec(2)])
    lifecycle.table.pause([1, 2, 99])
    assert not lifecycle.table.idle and running(lifecycle) == [0]
    assert lifecycle.table.take_handed_back() == (HandedBack((1, 2), Cause.PAUSE, dropped=(2,)),)
    made = play.lengths_of(finish(lifecycle) + finish(lifecycle, [spec(1), spec(2)]))
    assert (made[1], made[2]) == (6, 8)


def test_an_ended_row_cannot_be_paused(lifecycle: Lifecycle[Row]) -> None:
    lifecycle.table.admit([spec(0, max_tokens=1), spec(1, max_tokens=5)], CLOSED)
    turns(lifecycle, 2)
    lifecycle.table.pause([0])
    assert lifecycle.table.take_handed_back() == ()
    finish(lifecycle)
