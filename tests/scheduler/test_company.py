"""Which requests are worth a place beside the rows that run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.bilinear import Bilinear
from scheduler.company import worth_joining
from scheduler.request import Request
from scheduler.work import UNMEASURED
from scheduler.worker import Worker
from tests.scheduler.fakes import request, worker

BY_COLUMNS = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.0, d1=1.0, d2=0.0, d3=0.0, d4=0.0)
"""An iteration takes as long as it has cells."""


def of(row_id: int, left: int, *, length: int = 10) -> Request:
    one = request(row_id, length, max_tokens=1000)
    one.predicted_length = float(left)
    return one


def joining(held: Worker, *requests: Request, model: Bilinear = BY_COLUMNS) -> list[int]:
    return [one.row_id for one in worth_joining(requests, held, model)]


def test_a_long_row_stays_out_of_a_batch_of_short_ones() -> None:
    """Beside 4 of 10 iterations it makes iterations a quarter longer: worth it up to 1/E = 0.5·(4/10)/4, E = 20."""
    short = worker(*(of(row_id, 10) for row_id in range(4)))
    assert joining(short, of(8, 20)) == [8]
    assert joining(short, of(8, 21)) == []


def test_one_that_is_longer_than_the_batch_is_wide_pays_for_the_padding_of_all() -> None:
    """With 20 columns in place of 10 an iteration takes 100 instead of 40: worth it up to 1/E = 0.5·(4/10)·60/40."""
    short = worker(*(of(row_id, 10) for row_id in range(4)))
    assert joining(short, of(8, 3, length=20)) == [8]
    assert joining(short, of(8, 4, length=20)) == []


def test_those_that_join_are_company_for_the_next() -> None:
    """One row of 30 leaves room for one of 60, but no more once one of 5 has come."""
    held = worker(of(0, 30))
    assert joining(held, of(8, 60)) == [8]
    assert joining(held, of(7, 5), of(8, 60)) == [7]


def test_an_idle_executor_is_given_the_first_whatever_it_takes() -> None:
    assert joining(worker(), of(8, 900)) == [8]


@given(st.integers(1, 64), st.integers(1, 900), st.integers(1, 900), st.sampled_from((BY_COLUMNS, UNMEASURED)))
def test_rows_that_are_alike_always_join(rows: int, left: int, length: int, model: Bilinear) -> None:
    """However many there are: so requests of which nothing is known are served as if there were no such rule."""
    held = worker(*(of(row_id, left, length=length) for row_id in range(rows)))
    assert joining(held, of(100, left, length=length), of(101, left, length=length), model=model) == [100, 101]


@pytest.mark.parametrize("rows", [1, 5])
def test_whoever_raises_the_rate_at_which_requests_are_completed_joins(rows: int) -> None:
    held = worker(*(of(row_id, 7 + row_id) for row_id in range(rows)))

    def rate(*requests: Request) -> float:
        return sum(1 / (one.predicted_length or 0.0) for one in requests) / (10.0 * len(requests))

    raising = [
        left for left in range(1, 200) if rate(*held.requests.values(), of(99, left)) >= rate(*held.requests.values())
    ]
    assert raising and all(joining(held, of(99, left)) == [99] for left in raising)
