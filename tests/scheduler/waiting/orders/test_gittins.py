"""Gittins' rank by hand."""

from __future__ import annotations

import numpy as np

from scheduler.length.distribution import LengthDistribution
from scheduler.request import Request
from scheduler.waiting.orders.gittins import Gittins
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.waiting.predicted import TOKENS, by_tokens, fill, predicted, rows


def likely(row_id: int, *lengths: float, generated: int = 0) -> Request:
    """A request whose answer has one of these lengths, each as likely."""
    one = predicted(row_id, 0.0)
    values = np.array(lengths, dtype=np.float32)
    one.distribution = LengthDistribution.of(values, np.full(len(values), 1 / len(values), dtype=np.float32))
    one.predicted_length, one.generated = one.distribution.mean, generated
    return one


def rank(request: Request) -> float:
    return Gittins(by_tokens).key(request, 0.0)[1]


def test_a_chance_of_a_short_answer_counts() -> None:
    """2 or 18 tokens: to try 2 costs 2 with a chance of a half, so 4 for an end; to the end it is 10."""
    assert rank(likely(0, 2.0, 18.0)) == 4.0
    assert rank(likely(1, 10.0)) == 10.0
    assert rows(fill(RankedQueue(Gittins(by_tokens)), likely(1, 5.0), likely(0, 2.0, 18.0)).ranked(0.0)) == [0, 1]


def test_once_the_chance_is_gone_the_rest_counts() -> None:
    assert rank(likely(0, 2.0, 18.0, generated=2)) == 16.0
    assert rank(likely(0, 2.0, 18.0, generated=1)) == 2.0


def test_without_a_distribution_it_is_the_work_that_is_left() -> None:
    assert rank(predicted(0, 7.0)) == 7.0
    outlived = likely(0, 2.0, 4.0, generated=6)
    outlived.sampling = predicted(1, 1.0).sampling
    assert rank(outlived) == TOKENS.work(outlived)
