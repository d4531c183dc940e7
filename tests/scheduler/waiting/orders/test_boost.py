"""Boost's key by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest

from scheduler.waiting.orders.boost import Boost, attained_work, boost, predicted_work
from scheduler.waiting.prices import Prices
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import TOKENS, by_tokens, fill, predicted, rows


def test_the_boost_is_that_of_the_paper() -> None:
    assert boost(2.0, 0.5) == pytest.approx(-log(1 - exp(-1.0)) / 0.5)
    assert boost(1000.0, 0.5) == pytest.approx(0.0, abs=1e-12)
    assert boost(0.0, 0.5) > 10 * boost(1.0, 0.5) > 0, "what costs nothing has a finite one"


@pytest.mark.parametrize(("gamma", "ranked"), [(1e-3, [1, 2, 0]), (0.1, [1, 0, 2]), (50.0, [0, 1, 2])])
def test_it_lies_between_shortest_job_first_and_first_come_first_served(gamma: float, ranked: list[int]) -> None:
    """With γ = 0.1, requests of 8, 1 and 6 seconds have boosts of 6, 23.5 and 8; the last came 3 s later."""
    requests = predicted(0, 8.0, arrival=0.0), predicted(1, 1.0, arrival=1.0), predicted(2, 6.0, arrival=3.0)
    assert rows(fill(RankedQueue(Boost(by_tokens, gamma, predicted_work)), *requests).ranked(9.0)) == ranked


def test_work_is_turned_into_seconds() -> None:
    one = predicted(0, 8.0, arrival=5.0)
    assert Boost(lambda: replace(TOKENS, unit=0.25), 0.1, predicted_work).key(one, 9.0)[1] == 5.0 - boost(2.0, 0.1)


@pytest.mark.parametrize(("generated", "work"), [(0, 16.0), (6, 16.0), (7, 32.0), (22, 32.0), (23, 64.0)])
def test_attained_work_grows_in_powers_of_two(generated: int, work: float) -> None:
    """A prompt of 4 tokens costs 2 + 2·4, a token 1."""
    one = request(length=4)
    one.generated = generated
    assert attained_work(one, Prices(prompt=2.0, entry=2.0, token=1.0, cell=0.0)) == work


def test_priority_comes_first_and_gamma_is_a_rate() -> None:
    worse, better = predicted(0, 1.0, arrival=0.0), predicted(1, 9.0, arrival=1.0, priority=-1)
    assert rows(fill(RankedQueue(Boost(by_tokens, 0.1, predicted_work)), worse, better).ranked(2.0)) == [1, 0]
    with pytest.raises(ValueError, match="gamma must be more than 0"):
        Boost(by_tokens, 0.0, predicted_work)
