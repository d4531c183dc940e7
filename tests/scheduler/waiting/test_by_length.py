"""Orders by a length's distribution or rank."""

from math import log

import numpy as np
import pytest

from scheduler.length.prediction import LengthDistribution
from scheduler.request import Request
from scheduler.waiting.by_length import ByRank, gittins_rank, inflated_length, inflated_score
from scheduler.waiting.order import ByScore
from tests.scheduler.waiting.predicted import AGING, TOKENS, by_tokens, first, predicted, queue_by


def likely(row_id: int, chances: dict[float, float], *, generated: int = 0) -> Request:
    """A request whose answer has one of these lengths, with its chance."""
    lengths, weights = np.array([*chances], np.float32), np.array([*chances.values()], np.float32)
    spread = LengthDistribution(lengths, weights)
    return predicted(row_id, spread.mean, arrival=0.0, distribution=spread, generated=generated)


def rank(request: Request) -> float:
    return gittins_rank(request, by_tokens())


def test_a_chance_of_a_short_answer_counts_and_once_it_is_gone_the_rest() -> None:
    """2 or 18 tokens: to try 2 costs 2 with a chance of a half, so 4 for an end; to the end it is 10."""
    chances = {2.0: 0.5, 18.0: 0.5}
    assert [rank(likely(0, chances, generated=generated)) for generated in range(3)] == [4.0, 2.0, 16.0]
    assert rank(likely(1, {10.0: 1.0})) == 10.0
    assert first(queue_by(ByScore(rank), likely(1, {5.0: 1.0}), likely(0, chances))) == [0, 1]


def test_without_a_distribution_it_is_the_work_that_is_left() -> None:
    outlived = likely(0, {2.0: 0.5, 4.0: 0.5}, generated=6)
    assert (rank(predicted(0, 7.0)), rank(outlived)) == (7.0, TOKENS.work(outlived))


def test_the_worst_tenth_counts_twice_what_was_generated_is_left_out_and_the_rest_is_bounded() -> None:
    """8 tokens, in a fifth of all cases 98: 26 + 0.3·98 = 55.4, more than 40 for certain, which is 52."""
    risky, certain = likely(0, {8.0: 0.8, 98.0: 0.2}), likely(1, {40.0: 1.0})
    begun = likely(0, {10.0: 0.5, 50.0: 0.25, 500.0: 0.25}, generated=20)
    lengths = [inflated_length(one) for one in (risky, certain, begun, predicted(1, 7.0))]
    assert lengths == pytest.approx([26 + 0.3 * 98, 1.3 * 40, (30 + 480) / 2 + 0.3 * 480, 1.3 * 7])
    assert first(queue_by(ByScore(inflated_score), risky, certain)) == [1, 0]


@pytest.mark.parametrize(("later", "ranked"), [(190.0, [1, 0]), (205.0, [0, 1])])
def test_a_wait_makes_up_for_length(later: float, ranked: list[int]) -> None:
    """Half the length is worth ln 2 / ln(1/0.9) times 30 s: 197 s."""
    assert 30 * log(2) / log(1 / 0.9) == pytest.approx(197.4, abs=0.1)
    queue = queue_by(ByScore(inflated_score), predicted(0, 20.0, arrival=0.0), predicted(1, 10.0, arrival=later))
    assert first(queue, now=later) == ranked


ORDER = ByRank(AGING)


def test_the_least_rank_is_first_whatever_has_been_generated() -> None:
    begun = predicted(0, 50.0, generated=30)  # 20 are left, which the shortest remainder would take first
    assert first(queue_by(ORDER, begun, predicted(1, 40.0), predicted(2, None)), now=3.0) == [1, 0, 2]


def test_what_has_been_idle_for_two_hundred_steps_goes_before_all_others_by_its_rank() -> None:
    queue = queue_by(ORDER, predicted(0, 90.0), predicted(1, 80.0), predicted(2, 5.0, arrival=150.0))
    assert first(queue, now=199.0) == [2, 1, 0]
    assert first(queue, now=200.0) == [0, 2, 1]
    assert first(queue, now=201.0) == [1, 0, 2]


def test_a_promotion_ends_once_the_request_is_given_to_an_executor() -> None:
    starved, short = predicted(0, 90.0, arrival=0.0), predicted(1, 5.0, arrival=190.0)
    assert ORDER.key(starved, 200.0) < ORDER.key(short, 200.0)
    starved.runs = 1
    assert ORDER.key(starved, 200.0) > ORDER.key(short, 200.0)
    assert ORDER.changes_at(starved) == (400.0,) and ORDER.key(starved, 400.0) > ORDER.key(short, 400.0)
    assert ORDER.key(starved, 400.0)[1] == 0
