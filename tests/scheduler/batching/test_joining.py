"""Which requests are worth a place beside the rows that run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.batching.joining import worth_joining
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.prices import UNMEASURED
from scheduler.worker import Worker
from tests.scheduler.fakes import request, worker

BY_COLUMNS = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.0, d1=1.0, d2=0.0, d3=0.0, d4=0.0)
"""An iteration takes as long as it has cells."""


def of(row_id: int, total: int, *, length: int = 10, generated: int = 0) -> Request:
    one = request(row_id, length, max_tokens=1000)
    one.predicted_length, one.generated = float(total), generated
    return one


def joining(held: Worker, *requests: Request, model: Bilinear = BY_COLUMNS) -> list[int]:
    return [one.row_id for one in worth_joining(requests, held, model)]


def test_a_long_row_stays_out_of_a_batch_of_short_ones() -> None:
    """Beside 4 of 10 tokens it makes iterations a quarter longer: worth it if 1/G >= 0.7·(4/10)/4, G <= 14.3."""
    short = worker(*(of(row_id, 10) for row_id in range(4)))
    assert joining(short, of(8, 14)) == [8]
    assert joining(short, of(8, 15)) == []


def test_how_far_rows_have_come_does_not_matter() -> None:
    """A slot with a row that ends soon is free for a short one soon, and the long one would still be there."""
    ending = worker(*(of(row_id, 10, generated=9) for row_id in range(4)))
    assert joining(ending, of(8, 14)) == [8]
    assert joining(ending, of(8, 15)) == []


def test_one_that_is_longer_than_the_batch_is_wide_pays_for_the_padding_of_all() -> None:
    """With 21 columns in place of 11 an iteration takes 105 instead of 44: worth it if 1/G >= 0.7·(4/10)·61/44."""
    short = worker(*(of(row_id, 10, generated=1) for row_id in range(4)))
    assert joining(short, of(8, 2, length=21)) == [8]
    assert joining(short, of(8, 3, length=21)) == []


def test_those_that_join_are_company_for_the_next() -> None:
    """Beside one of 40 tokens one of 50 is worth it, but no more once one of 5 has come."""
    held = worker(of(0, 40))
    assert joining(held, of(8, 50)) == [8]
    assert joining(held, of(7, 5), of(8, 50)) == [7]


def test_a_row_that_outlives_its_prediction_is_like_longer_ones() -> None:
    """It does not end at once for that, and so does not keep others out."""
    outlived = worker(*(of(row_id, 10, generated=400) for row_id in range(4)))
    assert joining(outlived, of(8, 400)) == [8]


def test_an_idle_executor_is_given_the_first_whatever_it_takes() -> None:
    assert joining(worker(), of(8, 900)) == [8]


@given(
    st.lists(st.integers(0, 899), min_size=1, max_size=64),
    st.integers(1, 900),
    st.sampled_from((BY_COLUMNS, UNMEASURED)),
)
def test_requests_of_which_as_little_is_known_always_join(generated: list[int], length: int, model: Bilinear) -> None:
    """However many rows there are, and however far each has come: they are served as if there were no such rule."""
    held = worker(*(of(row_id, 900, length=length, generated=had) for row_id, had in enumerate(generated)))
    assert joining(held, of(100, 900, length=length), of(101, 900, length=length), model=model) == [100, 101]


@pytest.mark.parametrize("rows", [1, 5])
def test_whoever_raises_the_rate_at_which_requests_are_completed_joins(rows: int) -> None:
    held = worker(*(of(row_id, 7 + row_id) for row_id in range(rows)))

    def rate(*requests: Request) -> float:
        return sum(1 / (one.predicted_length or 0.0) for one in requests) / (10.0 * len(requests))

    raising = [
        left for left in range(1, 200) if rate(*held.requests.values(), of(99, left)) >= rate(*held.requests.values())
    ]
    assert raising and all(joining(held, of(99, left)) == [99] for left in raising)
