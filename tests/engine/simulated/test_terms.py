"""Every field of a command's terms takes the time that can be worked out by hand."""

from dataclasses import replace

import pytest

from engine.kv.host_store import HostStore
from engine.messages import NEVER, Admit, BatchPolicy, Entry, FinishReason, StepStats
from engine.simulated.batch import SimulatedRow
from engine.simulated.machine import Cost
from scheduler.serving_time.bilinear import Bilinear
from tests.engine.simulated.device import PER_COLUMN, STEADY, Device, row

CLOSED = BatchPolicy(closed=True)
SHAPE = BatchPolicy(entry=Entry.SHAPE)
BLOCKING = BatchPolicy(entry=Entry.EMBED_BLOCKING)


def test_a_row_is_prefilled_and_then_decoded() -> None:
    device = Device().post(Admit((row(1, prompt=3, tokens=5),))).run()
    assert device.first_tokens == {1: 1.0}
    assert device.ends == {1: 1.4}
    assert device.tokens == {1: 5}
    assert device.tally == StepStats(prompt=3, generated=5, reads=4 + 5 + 6 + 7)
    [begun] = [(time, report.seconds) for time, report in device.reports if report.begun]
    assert begun == (1.0, 1.0), "it began at 0"


def test_a_replayed_row_stops_and_another_reaches_its_length() -> None:
    device = Device().post(Admit((row(1, 3, 1), row(2, 3, 5000)))).run()
    ends = [update.finish_reason for _, update in device.updates if update.finish_reason]
    assert ends == [FinishReason.STOP, FinishReason.LENGTH]
    assert device.tokens == {1: 1, 2: 1000}


def test_prefill_alternates_with_decode_steps() -> None:
    device = Device().post(Admit((row(1, 3, 3),)))
    device.post(Admit((row(2, 3, 2),))).run()
    # 0-1 reads row 1, 1-1.1 decodes it, 1.1-2.1 reads row 2, 2.1-2.2 decodes both
    assert device.first_tokens == {1: 1.0, 2: 2.1}
    assert device.ends == {1: 2.2, 2: 2.2}


def test_a_group_is_read_in_chunks_and_short_rows_leave_it() -> None:
    device = Device(cost=PER_COLUMN, max_prefill_tokens=4).post(Admit((row(1, 2, 1), row(2, 6, 1)))).run()
    assert device.first_tokens == {1: 2.0, 2: 6.0}  # two columns for both, then four for one
    assert device.tally == StepStats(prompt=8, pad=0, generated=2)


def test_padding_of_a_group_is_counted() -> None:
    device = Device(cost=PER_COLUMN).post(Admit((row(1, 2, 1), row(2, 6, 1)))).run()
    assert device.first_tokens == {1: 6.0, 2: 6.0}
    assert device.tally == StepStats(prompt=8, pad=4, generated=2)


def test_rows_enter_by_shape_in_one_step_for_all() -> None:
    device = Device().post(Admit((row(1, 3, 10),), SHAPE)).run(1.05)
    device.post(Admit((row(2, 5, 1),), SHAPE)).run()
    # 0-1 row 1 enters, 1-1.1 it is decoded, 1.1-2.1 row 2 enters and row 1 gets its third token
    assert device.first_tokens == {1: 1.0, 2: 2.1}
    assert device.ends == {1: 2.8, 2: 2.1}
    # in the step of the entry row 1 gets four holes, which its last seven iterations read
    reads = 4 + sum(range(10, 17))
    assert device.tally == StepStats(prompt=8, pad=4, generated=11, reads=reads, pad_reads=7 * 4)


def test_running_rows_wait_for_every_chunk_of_a_prompt_that_is_read_alone() -> None:
    device = Device(cost=PER_COLUMN, max_prefill_tokens=4).post(Admit((row(1, 3, 10),), BLOCKING)).run(3.05)
    device.post(Admit((row(2, 6, 3), row(3, 4, 2)), BLOCKING)).run()
    # 0-3 reads row 1, 3-3.1 decodes it, 3.1-7.1 and 7.1-9.1 read row 2, 9.1-13.1 row 3, then all decode
    assert device.first_tokens == {1: 3.0, 2: 9.1, 3: 13.1}
    assert device.ends == {1: 13.9, 2: 13.3, 3: 13.2}
    assert (device.tally.prompt, device.tally.pad, device.tally.generated) == (13, 0, 15)


def test_holes_of_an_entry_take_room() -> None:
    device = Device().post(Admit((row(1, 3, 10),), SHAPE)).run(1.05)
    device.post(Admit((row(2, 5, 9),), SHAPE)).run(2.1)
    assert device.reports[-1][1].shape.end == 9  # 3 + 1 of row 1, and as many columns as row 2 has


def test_a_closed_batch_keeps_the_slots_of_rows_that_have_ended() -> None:
    device = Device().post(Admit((row(1, 3, 2), row(2, 3, 5)), CLOSED)).run()
    assert device.ends == {1: 1.1, 2: 1.4}
    assert [report.shape.rows for time, report in device.reports if time >= 1.1] == [2, 0]
    reads = 2 * (4 + 5 + 6 + 7)
    assert device.tally == StepStats(prompt=6, generated=7, invalid=3, reads=reads, invalid_reads=5 + 6 + 7)


def test_a_device_that_reads_no_padding_reads_each_rows_own_tokens_and_takes_their_time() -> None:
    per_cell = Bilinear(p4=1.0, d1=0.01)  # 1 s a prefill, 0.01 s a cell that an iteration reads
    device = Device(cost=per_cell, reads_padding=False).post(Admit((row(1, 3, 2), row(2, 9, 4)), CLOSED)).run()
    own, other = (4, 5, 6), (10, 11, 12)
    assert device.ends == {1: 1.14, 2: round(1 + 0.01 * sum(own + other), 9)}
    reads, invalid_reads = sum(own + other), own[1] + own[2]
    assert device.tally == StepStats(12, 6, 6, 2, reads=reads, invalid_reads=invalid_reads)


def sliced(cost: Cost = STEADY, *, kept_from: int = 0) -> list[Device]:
    """Three devices, beside one store, that serve a row in slices of three iterations one after another."""
    terms, store = BatchPolicy(closed=True, iterations=3, kept_from=kept_from), HostStore[SimulatedRow]()
    devices = [Device(store=store, cost=cost) for _ in range(3)]
    for device in devices:
        device.post(Admit((row(1, 3, 10),), terms)).run()
    return devices


COPYING = replace(STEADY, c1=0.01, c0=0.5)


@pytest.mark.parametrize(("kept_from", "second", "third"), [(0, 0.3, 0.3), (NEVER, 1.3, 1.1)])
def test_a_slice_hands_rows_back_and_they_go_on_elsewhere(kept_from: int, second: float, third: float) -> None:
    devices = sliced(kept_from=kept_from)
    assert devices[0].handed_back == [(1.3, "slice", (1,))]
    assert devices[1].handed_back == [(second, "slice", (1,))]
    assert devices[2].ends == {1: third}
    assert sum(device.tokens[1] for device in devices) == 10
    assert sum(device.tally.prompt for device in devices) == (3 + 7 + 11 if kept_from else 3)


def test_copies_take_their_time_when_rows_come_back() -> None:
    """6 tokens' K and V after the first slice, 9 after the second."""
    devices = sliced(COPYING)
    assert devices[0].handed_back == [(1.3, "slice", (1,))]
    assert devices[1].handed_back == [(0.86, "slice", (1,))]
    assert devices[2].ends == {1: 0.89}


def test_rows_of_some_lengths_keep_their_k_and_v() -> None:
    """7 tokens after the first slice are too few; 11 after the second are enough."""
    devices = sliced(COPYING, kept_from=8)
    assert devices[1].handed_back == [(1.3, "slice", (1,))]
    dropped = [one.dropped for device in devices for _, told in device.reports for one in told.handed_back]
    assert dropped == [(1,), ()]
    assert devices[2].ends == {1: 0.8}, "0.6 for 10 tokens' K and V, and two more tokens"
    assert [device.tally.prompt for device in devices] == [3, 7, 0]


@pytest.mark.parametrize("terms", [CLOSED, BatchPolicy()], ids=["closed", "open"])
def test_the_worst_ranked_row_waits_when_memory_is_full(terms: BatchPolicy) -> None:
    device = Device(capacity=20).post(Admit((row(1, 4, 10), row(2, 4, 10)), terms)).run()
    # 6 iterations make 2 rows of 10 cells; row 1 goes on alone for its last 3 tokens, then row 2
    assert device.ends == {1: 1.9, 2: 2.2}
    reads = 2 * sum(range(5, 11)) + 2 * (11 + 12 + 13)
    assert device.tally == StepStats(prompt=8, generated=20, reads=reads)


def test_a_batch_may_be_prefilled_in_groups_of_similar_length() -> None:
    rows = (row(1, 2, 2), row(2, 6, 2), row(3, 6, 2))
    device = Device(cost=PER_COLUMN, max_prefill_tokens=12)
    device.post(Admit(rows, BatchPolicy(closed=True, prefill_together=False))).run()
    assert device.first_tokens == {1: 2.0, 2: 8.0, 3: 8.0}
    assert device.ends == dict.fromkeys((1, 2, 3), 8.1)
    assert device.tally.pad == 0


@pytest.mark.parametrize(("capacity", "end"), [(40, 2.2), (39, 2.5)])
def test_a_row_joins_only_where_it_can_stay_for_a_while(capacity: int, end: float) -> None:
    device = Device(capacity=capacity, headroom=8).post(Admit((row(1, 10, 5),)))
    device.post(Admit((row(2, 10, 2),))).run()
    # row 1 has 11 tokens of K and V when row 2 is ready: both fit with 8 columns to spare if there is room for 2 x 20
    assert device.ends == {1: 2.4, 2: end}
