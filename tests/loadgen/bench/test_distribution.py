"""Figures of samples against what numpy and arithmetic say."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.bench.measures import summarize


def test_small_sets_by_hand() -> None:
    figures = summarize([0.4, 0.1, 0.2, 0.3], [25.0, 75.0, 100.0])
    assert figures is not None
    assert figures.count == 4
    assert figures.mean == pytest.approx(0.25)
    assert figures.std == pytest.approx(0.0125**0.5)
    assert figures.median == pytest.approx(0.2)
    assert figures.percentiles == pytest.approx({25.0: 0.1, 75.0: 0.3, 100.0: 0.4})


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_percentiles_are_measured_values(scale: float) -> None:
    samples = np.random.default_rng(0).lognormal(sigma=2.0, size=2000) * scale
    figures = summarize(samples.tolist(), [1.0, 50.0, 90.0, 99.0, 99.9])
    assert figures is not None
    ordered = np.sort(samples)
    for percentile, value in figures.percentiles.items():
        exact = ordered[round(percentile / 100 * samples.size) - 1]
        assert value == exact, percentile


def test_nothing_has_no_figures_and_zeros_have_zeros() -> None:
    assert summarize([], [99.0]) is None
    figures = summarize([0.0, 0.0], [99.0])
    assert figures is not None
    assert (figures.mean, figures.median, figures.percentiles[99.0]) == (0, 0, 0)
