"""What a simulated scheduler is told of answers: as much as was asked for, the same each time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.messages import SamplingParams
from loadgen.simulate.prediction import read_prediction
from scheduler.length.distribution import LengthDistribution


def asked(length: int, most: int = 100_000) -> SamplingParams:
    return SamplingParams(most, replay_tokens=length)


@pytest.mark.parametrize("text", ["none", "oracle", "noisy:0.3", "noisy:2"])
def test_it_reads_what_it_writes(text: str) -> None:
    assert str(read_prediction(text)) == text


@pytest.mark.parametrize("text", ["", "noisy", "noisy:", "noisy:0", "noisy:-1", "noisy:nan", "noisy:inf", "good:0.3"])
def test_what_is_no_prediction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="noisy:SIGMA"):
        read_prediction(text)


def test_an_oracle_knows_and_nobody_knows_nothing() -> None:
    source = read_prediction("oracle").source(0)
    assert source is not None and source(asked(17)) == 17.0
    assert read_prediction("none").source(0) is None


def noisy(sigma: float, seed: int, length: int, count: int) -> list[LengthDistribution]:
    source = read_prediction(f"noisy:{sigma}").source(seed)
    assert source is not None
    told = [source(asked(length)) for _ in range(count)]
    return [one for one in told if isinstance(one, LengthDistribution)]


def test_errors_are_log_normal_and_the_distribution_is_as_wide() -> None:
    told = noisy(0.5, 1, 1000, 500)
    medians = np.log([float(np.median(one.lengths)) / 1000 for one in told])
    assert len(told) == 500
    assert abs(medians.mean()) < 0.1 and abs(medians.std() - 0.5) < 0.05
    assert np.log(told[0].lengths).std() == pytest.approx(0.5, abs=0.03)
    assert math.log(told[0].mean / float(np.median(told[0].lengths))) == pytest.approx(0.5**2 / 2, abs=0.02)


def test_a_seed_says_all() -> None:
    one, two, other = (noisy(0.5, seed, 200, 5) for seed in (3, 3, 4))
    assert [told.mean for told in one] == [told.mean for told in two] != [told.mean for told in other]


def test_no_length_is_more_than_may_be_generated_or_less_than_a_token() -> None:
    source = read_prediction("noisy:3").source(0)
    assert source is not None
    told = [source(asked(20, most=30)) for _ in range(50)]
    for one in told:
        assert isinstance(one, LengthDistribution)
        assert one.lengths.min() >= 1 and one.lengths.max() <= 30
