"""Whose turn it is in a line that lets cheap requests pass: by hand, and its bound under endless short arrivals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.patience import Patience
from scheduler.request import Request
from scheduler.turns import Turns
from scheduler.work import Work
from tests.scheduler.fakes import request, worker

TOKENS = Work(prompt=0.0, entry=0.0, token=1.0, cell=0.0)
"""A request's work is what it is predicted to generate."""

CELLS = Work(prompt=0.0, entry=0.0, token=1.0, cell=0.001)


def asked(row_id: int, predicted: float, *, length: int = 4, priority: int = 0) -> Request:
    one = request(row_id, length, arrival=float(row_id), priority=priority)
    one.predicted_length = predicted
    return one


def line(*requests: Request, work: Work = TOKENS, backlog: float = 1.0, own: float = 0.0) -> Turns:
    turns = Turns(work, Patience(backlog, own))
    for one in requests:
        turns.add(one)
    return turns


def first(turns: Turns, count: int = 9) -> list[int]:
    return [one.row_id for one in turns.first(worker(), 0.0, count)]


def test_the_cheapest_is_first_and_equals_keep_the_order_of_arrival() -> None:
    turns = line(asked(0, 5.0), asked(1, 2.0), asked(2, 8.0), asked(3, 5.0))
    assert first(turns) == [1, 0, 3, 2] == [one.row_id for one in turns]
    assert first(turns, 2) == [1, 0]


def test_better_classes_come_first() -> None:
    turns = line(asked(0, 1.0), asked(1, 8.0, priority=-1))
    assert first(turns) == [1]
    assert [one.row_id for one in turns] == [1, 0]


def test_a_request_is_promoted_when_as_much_was_taken_as_waits() -> None:
    """8 wait in row 0 and 2 in each that comes: with 2 in row n waiting, row 0 is promoted once 10 have been taken."""
    turns = line(asked(0, 8.0))
    for row_id in range(1, 6):
        turns.add(asked(row_id, 2.0))
        assert first(turns)[0] == row_id
        turns.serve(next(one for one in turns if one.row_id == row_id))
    turns.add(asked(6, 2.0))
    assert first(turns) == [0]
    assert [one.row_id for one in turns] == [0, 6]
    turns.add(asked(7, 1.0))
    assert first(turns)[0] == 7, "more waits, so it may wait longer"


def test_what_runs_makes_all_wait_longer_and_long_ones_less() -> None:
    """κ = 1 beside 2 rows: the place of a request is 2 x its work before the others'."""
    turns = line(own=1.0, backlog=0.0)
    turns.add(asked(0, 1.0))
    turns.first(worker(request(91), request(92)), 0.0, 1)
    for row_id, predicted in ((1, 4.0), (2, 8.0)):
        turns.add(asked(row_id, predicted))
    # The 95th percentile of 1, 4, 8 is 4: all with a place of -8 or before are promoted: row 1 (-8) and row 2 (-16).
    assert [one.row_id for one in turns.first(worker(request(91), request(92)), 0.0, 9)] == [2, 1]


def test_one_that_was_handed_back_begins_to_wait_anew() -> None:
    """It made way for another, which must not find it first in line."""
    turns = line(own=1.0, backlog=0.0)
    paused = asked(0, 8.0)
    paused.runs, paused.generated = 1, 2
    turns.add(asked(1, 4.0))
    turns.first(worker(request(91)), 0.0, 1)
    turns.add(paused)
    assert [one.row_id for one in turns] == [1, 0]


def test_of_equals_the_one_that_needs_least_padding_is_first() -> None:
    """Beside a row of 40 tokens; the last one is too expensive to be an equal."""
    requests = asked(0, 5.0, length=10), asked(1, 5.0, length=38), asked(2, 5.0, length=20), asked(3, 8.0, length=40)
    held = worker(request(9, length=40))
    assert [one.row_id for one in line(*requests, work=CELLS).first(held, 0.0, 9)] == [1, 2, 0, 3]


def test_requests_can_leave_at_any_time() -> None:
    requests = [asked(row_id, 1.0 + row_id % 3, priority=row_id % 2) for row_id in range(6)]
    turns = line(*requests)
    assert turns.discard(requests[2]) and not turns.discard(requests[2])
    assert requests[2] not in turns and len(turns) == 5
    for one in requests:
        turns.discard(one)
    assert not turns and list(turns) == []


@pytest.mark.parametrize("patience", [(-1.0, 0.0, 1.0), (0.0, -1.0, 1.0), (0.0, 0.0, 0.9)])
def test_impatience_is_refused(patience: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="patience"):
        Patience(*patience)


@given(st.integers(0, 2**32), st.floats(0, 3), st.floats(0, 2), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_no_request_waits_longer_than_the_bound(seed: int, backlog: float, own: float, rows: int) -> None:
    """Short ones come for ever, as fast as they are taken or faster; all the same the long one has its turn."""
    rng = random.Random(seed)
    held = worker(*(request(1000 + row) for row in range(rows)), rows=9)
    turns = Turns(TOKENS, Patience(backlog, own))
    turns.add(asked(0, 1.0))
    turns.first(held, 0.0, 1)
    long_one, taken, most = asked(1, 8.0), 0.0, 0.0
    turns.add(long_one)
    for row_id in range(2, 5000):
        for _ in range(rng.choice((0, 1, 1, 2)) if len(turns) < 30 else 0):
            turns.add(asked(row_id * 10 + len(turns), rng.choice((1.0, 2.0, 3.0))))
        most = max(most, sum(TOKENS.of(one) for one in turns))
        [one] = turns.first(held, 0.0, 1)
        if one is long_one:
            break
        taken += TOKENS.of(one)
        turns.serve(one)
    assert long_one in turns
    assert taken <= (1 + backlog) * most + (1 + own * rows) * 8.0 + 1e-6
