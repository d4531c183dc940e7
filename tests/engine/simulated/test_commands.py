"""Commands that come while work is under way, and whatever comes, each row ends once with all its tokens."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from engine import messages
from engine.kv.host_store import HostStore
from engine.messages import NEVER, Admit, BatchPolicy, Cancel, Entry, Pause, RowId, RowSpec
from engine.simulated.batch import SimulatedRow
from engine.simulated.device import GLANCE
from engine.simulated.machine import Cost
from scheduler.serving_time.bilinear import Bilinear
from tests.engine.simulated.device import PER_COLUMN, STEADY, Device, row


@pytest.mark.parametrize(("time", "boundary"), [(1.25, 1.3), (1.3, 1.3), (1.301, 1.4)])
def test_an_order_cuts_a_run_short_at_the_next_iteration(time: float, boundary: float) -> None:
    device = Device().post(Admit((row(1, 3, 20),))).run(time - 1e-12)
    device.time = time
    device.post(Pause((1,))).run()
    assert device.handed_back == [(boundary, "pause", (1,))]
    assert device.tokens == {1: 1 + round((boundary - 1) / 0.1)}


def test_a_paused_row_goes_on_where_it_stopped() -> None:
    device = Device().post(Admit((row(1, 3, 20),))).run(1.25)
    device.post(Pause((1, 7))).run(5.0)
    device.post(Admit((row(1, 3, 20),))).run()
    assert device.ends == {1: 6.6} and device.tokens == {1: 20}


def test_a_cancelled_row_is_gone_at_the_next_iteration() -> None:
    device = Device().post(Admit((row(1, 3, 20), row(2, 3, 4)), BatchPolicy(closed=True))).run(1.25)
    device.post(Cancel((1, 7))).run()
    assert device.ends == {2: 1.3} and device.executor.due == math.inf


def test_an_executor_whose_last_rows_are_cancelled_reports_that_it_is_empty() -> None:
    """It said nothing, so that its gauges showed a full batch until the next request."""
    device = Device().post(Admit((row(1, 3, 20), row(2, 3, 20)))).run(1.25)
    assert device.reports[-1][1].shape.staged == 2
    device.post(Cancel((1, 2))).run()
    last = device.reports[-1][1]
    assert (last.shape.rows, last.shape.staged, last.updates) == (0, 0, ())


def test_what_is_kept_of_a_row_can_be_cancelled() -> None:
    store: HostStore[SimulatedRow] = HostStore()
    device = Device(store=store).post(Admit((row(1, 3, 20),), BatchPolicy(closed=True, iterations=2))).run()
    assert len(store) == 1
    device.post(Cancel((1,))).run()
    assert len(store) == 0


def test_a_prefill_is_not_cut_short() -> None:
    device = Device().post(Admit((row(1, 3, 20),))).run(0.5)
    device.post(Cancel((1,))).run()
    assert device.first_tokens == {1: 1.0} and device.executor.due == math.inf


def test_a_closed_batch_runs_on_when_another_comes() -> None:
    device = Device().post(Admit((row(1, 3, 20),), BatchPolicy(closed=True))).run(1.25)
    due = device.executor.due
    device.executor.post(Admit((row(2, 3, 20),), BatchPolicy(closed=True)))
    assert device.executor.due == due


def test_rows_that_others_may_join_report_from_time_to_time() -> None:
    device = Device().post(Admit((row(1, 3, 200),))).run()
    assert max(len(update.token_ids) for _, update in device.updates) == GLANCE
    assert len(device.updates) <= 200 / GLANCE + 2


# Whatever comes

TERMS = st.builds(
    BatchPolicy,
    entry=st.sampled_from(Entry),
    closed=st.booleans(),
    iterations=st.none() | st.integers(1, 12),
    overflow=st.sampled_from(messages.Overflow),
    prefill_together=st.booleans(),
    kept_from=st.sampled_from([0, NEVER, 10, 20]),
)
ROWS = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2))
GROUPS = st.lists(ROWS, min_size=1, max_size=4)
ADMISSIONS = st.lists(st.tuples(st.floats(0, 20), TERMS, GROUPS), min_size=1, max_size=8)
PAUSES = st.lists(st.tuples(st.floats(0, 30), st.lists(st.integers(0, 31), max_size=3)), max_size=6)
COSTS = st.builds(
    Bilinear,
    *(st.floats(0, 0.001) for _ in range(3)),
    st.floats(0.01, 1),
    *(st.floats(0, 0.001),) * 3,
    st.just(0.1),
    st.floats(0, 0.001),
    st.floats(0, 0.1),
)


Admissions = list[tuple[float, BatchPolicy, list[tuple[int, int, int]]]]


class Client:
    """Sends commands at their times, and rows that are handed back to either device at once."""

    def __init__(self, cost: Bilinear, chunk: int) -> None:
        store: HostStore[SimulatedRow] = HostStore()
        sizes: dict[str, Any] = {"capacity": 90, "rows": 5, "headroom": 4, "max_prefill_tokens": chunk}
        self.devices = [Device(cost=cost, store=store, **sizes) for _ in range(2)]
        self.admitted: dict[RowId, tuple[RowSpec, BatchPolicy]] = {}
        self.seen = [0, 0]
        self.runs = 0

    def post(self, time: float, place: int, command: messages.Command) -> None:
        for device in self.devices:
            device.run(time)
        self.devices[place].executor.post(command)

    def drain(self) -> None:
        """Until all is done; a row that is handed back is admitted again, alone."""
        while any(device.executor.due < math.inf for device in self.devices) or self._unseen():
            place = min((0, 1), key=lambda place: self.devices[place].executor.due)
            due = self.devices[place].executor.due
            if due < math.inf:
                self.devices[place].run(due)
            self._readmit(max(device.time for device in self.devices))

    def _unseen(self) -> bool:
        return any(len(device.reports) > seen for device, seen in zip(self.devices, self.seen, strict=True))

    def _readmit(self, now: float) -> None:
        for place, device in enumerate(self.devices):
            reports, self.seen[place] = device.reports[self.seen[place] :], len(device.reports)
            for _, report in reports:
                for row_id in (row_id for one in report.handed_back for row_id in one.row_ids):
                    spec, terms = self.admitted[row_id]
                    other = self.devices[(place + self.runs) % 2]
                    other.time = max(other.time, now)
                    other.executor.post(Admit((spec,), terms))
                    self.runs += 1


def _play(cost: Bilinear, chunk: int, admissions: Admissions) -> Client:
    client, number = Client(cost, chunk), 0
    for place, (time, terms, shapes) in enumerate(sorted(admissions, key=lambda one: one[0])):
        specs = tuple(row(row_id, *sizes[:2], priority=sizes[2]) for row_id, sizes in enumerate(shapes, number))
        number += len(specs)
        client.admitted |= {spec.row_id: (spec, terms) for spec in specs}
        client.post(time, place % 2, Admit(specs, terms))
    return client


@settings(max_examples=100, deadline=None)
@given(ADMISSIONS, PAUSES, COSTS, st.integers(1, 100))
def test_every_row_ends_once_with_exactly_its_tokens(
    admissions: Admissions, pauses: list[tuple[float, list[int]]], cost: Bilinear, chunk: int
) -> None:
    client = _play(cost, chunk, admissions)
    last = max(time for time, _, _ in admissions)
    for time, row_ids in sorted(pauses):
        for place in (0, 1):
            client.post(max(time, last), place, Pause(tuple(row_ids)))
    client.drain()
    tokens = sum((Counter(device.tokens) for device in client.devices), Counter[RowId]())
    ends = [update.row_id for device in client.devices for _, update in device.updates if update.finish_reason]
    assert sorted(ends) == sorted(client.admitted)
    assert tokens == {row_id: spec.sampling.replay_tokens for row_id, (spec, _) in client.admitted.items()}
    assert sum(device.tally.generated for device in client.devices) == tokens.total()


@settings(max_examples=25, deadline=None)
@given(ADMISSIONS, COSTS)
def test_equal_orders_bring_equal_reports(admissions: Admissions, cost: Bilinear) -> None:
    one, two = (_play(cost, 16, admissions) for _ in range(2))
    for client in (one, two):
        client.drain()
    assert [device.reports for device in one.devices] == [device.reports for device in two.devices]


# Every field of a command's terms takes the time that can be worked out by hand

CLOSED = BatchPolicy(closed=True)
SHAPE = BatchPolicy(entry=Entry.SHAPE)
BLOCKING = BatchPolicy(entry=Entry.EMBED_BLOCKING)


def test_a_row_is_prefilled_and_then_decoded() -> None:
    device = Device().post(Admit((row(1, prompt=3, tokens=5),))).run()
    assert device.first_tokens == {1: 1.0}
    assert device.ends == {1: 1.4}
    assert device.tokens == {1: 5}
    assert device.tally == messages.StepStats(prompt=3, generated=5, reads=4 + 5 + 6 + 7)
    [begun] = [(time, report.seconds) for time, report in device.reports if report.begun]
    assert begun == (1.0, 1.0), "it began at 0"


def test_a_replayed_row_stops_and_another_reaches_its_length() -> None:
    device = Device().post(Admit((row(1, 3, 1), row(2, 3, 5000)))).run()
    ends = [update.finish_reason for _, update in device.updates if update.finish_reason]
    assert ends == [messages.FinishReason.STOP, messages.FinishReason.LENGTH]
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
    assert device.tally == messages.StepStats(prompt=8, pad=0, generated=2)


def test_padding_of_a_group_is_counted() -> None:
    device = Device(cost=PER_COLUMN).post(Admit((row(1, 2, 1), row(2, 6, 1)))).run()
    assert device.first_tokens == {1: 6.0, 2: 6.0}
    assert device.tally == messages.StepStats(prompt=8, pad=4, generated=2)


def test_rows_enter_by_shape_in_one_step_for_all() -> None:
    device = Device().post(Admit((row(1, 3, 10),), SHAPE)).run(1.05)
    device.post(Admit((row(2, 5, 1),), SHAPE)).run()
    # 0-1 row 1 enters, 1-1.1 it is decoded, 1.1-2.1 row 2 enters and row 1 gets its third token
    assert device.first_tokens == {1: 1.0, 2: 2.1}
    assert device.ends == {1: 2.8, 2: 2.1}
    # in the step of the entry row 1 gets four holes, which its last seven iterations read
    reads = 4 + sum(range(10, 17))
    assert device.tally == messages.StepStats(prompt=8, pad=4, generated=11, reads=reads, pad_reads=7 * 4)


def test_holes_of_an_entry_take_room() -> None:
    device = Device().post(Admit((row(1, 3, 10),), SHAPE)).run(1.05)
    device.post(Admit((row(2, 5, 9),), SHAPE)).run(2.1)
    assert device.reports[-1][1].shape.end == 9  # 3 + 1 of row 1, and as many columns as row 2 has


def test_a_device_that_reads_no_padding_reads_each_rows_own_tokens_and_takes_their_time() -> None:
    per_cell = Bilinear(p4=1.0, d1=0.01)  # 1 s a prefill, 0.01 s a cell that an iteration reads
    device = Device(cost=per_cell, reads_padding=False).post(Admit((row(1, 3, 2), row(2, 9, 4)), CLOSED)).run()
    own, other = (4, 5, 6), (10, 11, 12)
    assert device.ends == {1: 1.14, 2: round(1 + 0.01 * sum(own + other), 9)}
    reads, invalid_reads = sum(own + other), own[1] + own[2]
    assert device.tally == messages.StepStats(12, 6, 6, 2, reads=reads, invalid_reads=invalid_reads)


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


@pytest.mark.parametrize(("capacity", "end"), [(40, 2.2), (39, 2.5)])
def test_a_row_joins_only_where_it_can_stay_for_a_while(capacity: int, end: float) -> None:
    device = Device(capacity=capacity, headroom=8).post(Admit((row(1, 10, 5),)))
    device.post(Admit((row(2, 10, 2),))).run()
    # row 1 has 11 tokens of K and V when row 2 is ready: both fit with 8 columns to spare if there is room for 2 x 20
    assert device.ends == {1: 2.4, 2: end}
