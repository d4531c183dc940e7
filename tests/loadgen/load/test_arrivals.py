"""Arrival processes against the distributions that they claim to follow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from loadgen.load.schedule import Arrivals, Ramp, arrival_times

COUNT = 5000
LIKELY = 0.01
"""With the seeds below fixed, a p-value under this says that the distribution is another one."""


def gaps(arrivals: Arrivals, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff(arrival_times(arrivals, COUNT, np.random.default_rng(seed)), prepend=0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_burstiness_1_is_a_poisson_process(rate: float, seed: int) -> None:
    assert stats.kstest(gaps(Arrivals(rate), seed), stats.expon(scale=1 / rate).cdf).pvalue > LIKELY


@pytest.mark.parametrize("burstiness", [0.2, 0.5, 2.0, 10.0])
def test_gaps_follow_the_gamma_distribution(burstiness: float) -> None:
    seen = gaps(Arrivals(4.0, burstiness))
    assert stats.kstest(seen, stats.gamma(burstiness, scale=1 / (4.0 * burstiness)).cdf).pvalue > LIKELY
    assert np.std(seen) / np.mean(seen) == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_the_check_itself_tells_distributions_apart() -> None:
    assert stats.kstest(gaps(Arrivals(4.0, 2.0)), stats.expon(scale=1 / 4.0).cdf).pvalue < LIKELY
    assert stats.kstest(gaps(Arrivals(4.0)), stats.expon(scale=1 / 5.0).cdf).pvalue < LIKELY


def test_gaps_do_not_depend_on_each_other() -> None:
    seen = gaps(Arrivals(4.0))
    assert stats.spearmanr(seen[:-1], seen[1:]).pvalue > LIKELY
    assert stats.spearmanr(seen, np.arange(COUNT)).pvalue > LIKELY


@pytest.mark.parametrize("seed", range(3))
def test_the_last_arrives_at_count_over_rate(seed: int) -> None:
    times = arrival_times(Arrivals(8.0, 0.5), 100, np.random.default_rng(seed))
    assert times[-1] == pytest.approx(100 / 8.0)
    assert np.all(np.diff(times) >= 0)


def test_infinite_rate_is_all_at_once_and_infinite_burstiness_a_metronome() -> None:
    rng = np.random.default_rng(0)
    assert arrival_times(Arrivals(), 3, rng).tolist() == [0, 0, 0]
    assert arrival_times(Arrivals(4.0, math.inf), 4, rng).tolist() == [0.25, 0.5, 0.75, 1.0]
    assert arrival_times(Arrivals(4.0), 0, rng).tolist() == []


def test_a_seed_repeats_and_another_differs() -> None:
    one, again, other = (arrival_times(Arrivals(4.0), 10, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()


def test_ramps_go_from_their_first_rate_to_their_last() -> None:
    assert Ramp("linear", 1.0, 5.0).rates(5).tolist() == pytest.approx([1, 2, 3, 4, 5])
    assert Ramp("exponential", 1.0, 16.0).rates(5).tolist() == pytest.approx([1, 2, 4, 8, 16])
    assert Ramp("linear", 3.0, 5.0).rates(1).tolist() == [3]


@pytest.mark.parametrize("ramp", [Ramp("linear", 1.0, 50.0), Ramp("exponential", 50.0, 1.0)])
def test_gaps_of_a_ramp_follow_its_rate_at_each_request(ramp: Ramp) -> None:
    seen = gaps(Arrivals(burstiness=2.0, ramp=ramp)) * ramp.rates(COUNT)
    assert stats.kstest(seen, stats.gamma(2.0, scale=0.5).cdf).pvalue > LIKELY
    metronome = gaps(Arrivals(burstiness=math.inf, ramp=ramp))
    assert metronome == pytest.approx(1 / ramp.rates(COUNT))
