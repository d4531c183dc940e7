"""Orders by work, as boost, feedback, fair sojourn and response ratio, and by a length's distribution or rank."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from scheduler.assembly import ORDERS
from scheduler.batching.batcher import BatchLimits
from scheduler.length.prediction import LengthDistribution
from scheduler.request import Request
from scheduler.waiting.by_length import ByRank, gittins_rank, inflated_length, inflated_score
from scheduler.waiting.by_work import (
    Boost,
    FairSojourn,
    ResponseRatio,
    attained_work,
    boost,
    find_level,
    predicted_work,
)
from scheduler.waiting.order import ByScore
from scheduler.waiting.prices import Prices, device_prices
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import AGING, TOKENS, by_tokens, fill, first, predicted, queue_by, serve


def test_the_boost_is_that_of_the_paper() -> None:
    assert boost(2.0, 0.5) == pytest.approx(-log(1 - exp(-1.0)) / 0.5)
    assert boost(1000.0, 0.5) == pytest.approx(0.0, abs=1e-12)
    assert boost(0.0, 0.5) > 10 * boost(1.0, 0.5) > 0, "what costs nothing has a finite one"


@pytest.mark.parametrize(("gamma", "ranked"), [(1e-3, [1, 2, 0]), (0.1, [1, 0, 2]), (50.0, [0, 1, 2])])
def test_it_lies_between_shortest_job_first_and_first_come_first_served(gamma: float, ranked: list[int]) -> None:
    """With γ = 0.1, requests of 8, 1 and 6 seconds have boosts of 6, 23.5 and 8; the last came 3 s later."""
    requests = predicted(0, 8.0, arrival=0.0), predicted(1, 1.0, arrival=1.0), predicted(2, 6.0, arrival=3.0)
    assert first(queue_by(Boost(by_tokens, gamma, predicted_work), *requests), now=9.0) == ranked


def test_work_is_turned_into_seconds() -> None:
    one = predicted(0, 8.0, arrival=5.0)
    assert Boost(lambda: replace(TOKENS, unit=0.25), 0.1, predicted_work).key(one, 9.0)[1] == 5.0 - boost(2.0, 0.1)


@pytest.mark.parametrize(("generated", "work"), [(0, 16.0), (6, 16.0), (7, 32.0), (22, 32.0), (23, 64.0)])
def test_attained_work_grows_in_powers_of_two(generated: int, work: float) -> None:
    """A prompt of 4 tokens costs 2 + 2·4, a token 1."""
    prices = Prices(prompt=2.0, entry=2.0, token=1.0, cell=0.0)
    assert attained_work(request(length=4, generated=generated), prices) == work


def test_priority_comes_first() -> None:
    worse, better = predicted(0, 1.0, arrival=0.0), predicted(1, 9.0, arrival=1.0, priority=-1)
    assert first(queue_by(Boost(by_tokens, 0.1, predicted_work), worse, better), now=2.0) == [1, 0]


PRICES = Prices(prompt=1.0, entry=0.0, token=1.0, cell=0.0)
"""A prompt's token costs 1, and so does a generated one."""


@pytest.mark.parametrize(
    ("length", "generated", "level"),
    [(1, 0, 0), (1, 1, 1), (1, 2, 2), (1, 6, 3), (8, 0, 3), (8, 1, 4), (8, 15, 4), (8, 16, 5), (5, 2, 3), (5, 3, 4)],
)
def test_a_request_joins_where_its_prompt_fits_and_then_sinks(length: int, generated: int, level: int) -> None:
    """With a prompt of 8 it joins at level 3, whose quantum of 8 that uses up; level 4 lets it have 16 more."""
    assert find_level(request(length=length, generated=generated), PRICES) == level


def test_levels_come_before_arrival() -> None:
    old, new = request(0, length=8, arrival=0.0), request(1, length=1, arrival=5.0)
    same = request(2, length=7, arrival=1.0)
    assert first(queue_by(ByScore(lambda one: find_level(one, PRICES)), old, new, same), now=6.0) == [1, 0, 2]


def test_a_late_one_passes_only_what_would_not_have_ended_by_then() -> None:
    """While 9 of work are taken, rows 1 and 2 and that share it and have had 3 each; so a newcomer of 5 ends after the
    one of 6, which has 3 left."""
    queue = queue_by(FairSojourn(), predicted(0, 9.0), predicted(1, 6.0), predicted(2, 20.0))
    assert first(queue) == [1, 0, 2], "of those that came together the shortest would end first"
    serve(queue, 0)
    fill(queue, predicted(3, 5.0))
    assert first(queue) == [1, 3, 2]
    fill(queue, predicted(4, 2.0))
    assert first(queue) == [4, 1, 3, 2]


def test_the_longest_wait_for_its_work_is_first() -> None:
    """10 s of work since 0 s against 2 s since 10 s: 1.2 against 1.0 at 12 s, 1.26 against 1.3 at 12.6 s."""
    queue = queue_by(ResponseRatio(TOKENS.work), predicted(0, 10.0, arrival=0.0), predicted(1, 2.0, arrival=10.0))
    assert first(queue, now=12.0) == [0, 1] and first(queue, now=12.6) == [1, 0]
    free = queue_by(ResponseRatio(lambda one: 0.0), predicted(0, 5.0), predicted(1, 3.0))
    assert first(free, now=9.0) == [0, 1], "what costs nothing is ranked too"


def test_by_the_prompt_alone() -> None:
    """Prompts of 10 and 2 tokens at 0 and 10 s: the second passes at 12.5 s. What is kept of a prompt is not read."""
    one, other = request(0, length=10, arrival=0.0), request(1, length=4, arrival=10.0, cached_prompt=2)
    queue = queue_by(ORDERS["hrrn-prompt"](BatchLimits(100, 1), device_prices), one, other)
    assert first(queue, now=12.4) == [0, 1] and first(queue, now=12.6) == [1, 0]


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
