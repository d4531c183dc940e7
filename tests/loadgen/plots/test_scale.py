"""Axes and the words for figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plots.scale import linear, logarithmic, number

REAL = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-6)


@given(st.lists(REAL))
def test_a_linear_scale_holds_zero_and_all_values_with_a_few_even_ticks(values: list[float]) -> None:
    scale = linear(values)
    hair = (scale.high - scale.low) * 1e-6
    assert scale.low <= min([0.0, *values]) + hair and scale.high >= max([0.0, *values]) - hair
    assert 2 <= len(scale.ticks) <= 12
    assert (scale.share(scale.low), scale.share(scale.high)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([4], (0, 1, 2, 3, 4)),
        ([0.7], (0, 0.2, 0.4, 0.6, 0.8)),
        ([], (0, 0.2, 0.4, 0.6, 0.8, 1)),
        ([-3, 9], (-5, -2.5, 0, 2.5, 5, 7.5, 10)),
    ],
)
def test_ticks_are_round(values: list[float], ticks: tuple[float, ...]) -> None:
    assert linear(values).ticks == pytest.approx(ticks)


def test_a_logarithmic_scale_has_its_values_as_ticks() -> None:
    scale = logarithmic([4, 1, 2, 1])
    assert list(scale.ticks) == [1, 2, 4]
    assert scale.share(2) == pytest.approx(0.5)
    assert 0 < scale.share(1) < scale.share(4) < 1
    assert 0 < logarithmic([3]).share(3) < 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (12.345, "12.3"),
        (0.012345, "0.0123"),
        (100.0, "100"),
        (-2.5, "-2.5"),
        (120, "120"),
    ],
)
def test_figures_are_written_short(value: float, words: str) -> None:
    assert number(value) == words
