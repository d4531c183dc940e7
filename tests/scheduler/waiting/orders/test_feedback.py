"""Levels of feedback by hand."""

from __future__ import annotations

import pytest

from scheduler.waiting.orders.feedback import Feedback, find_level
from scheduler.waiting.prices import Prices
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import fill, rows

PRICES = Prices(prompt=1.0, entry=0.0, token=1.0, cell=0.0)
"""A prompt's token costs 1, and so does a generated one."""


@pytest.mark.parametrize(
    ("length", "generated", "level"),
    [(1, 0, 0), (1, 1, 1), (1, 2, 2), (1, 6, 3), (8, 0, 3), (8, 1, 4), (8, 15, 4), (8, 16, 5), (5, 2, 3), (5, 3, 4)],
)
def test_a_request_joins_where_its_prompt_fits_and_sinks_as_it_is_served(
    length: int, generated: int, level: int
) -> None:
    """With a prompt of 8 it joins at level 3, whose quantum of 8 that uses up; level 4 lets it have 16 more."""
    one = request(length=length)
    one.generated = generated
    assert find_level(one, PRICES) == level


def test_levels_come_before_arrival() -> None:
    old, new = request(0, length=8, arrival=0.0), request(1, length=1, arrival=5.0)
    same = request(2, length=7, arrival=1.0)
    assert rows(fill(RankedQueue(Feedback(lambda: PRICES)), old, new, same).ranked(6.0)) == [1, 0, 2]
