"""The bilinear serving-time model: its closed form, its fit, and that no estimate is below zero."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.timing import SliceTiming, Timing, Timings
from scheduler.bilinear import Bilinear, fit, fit_errors, rmse

MODEL = Bilinear(p1=1e-4, p2=2e-3, p3=3e-5, p4=0.02, d1=2e-7, d2=5e-4, d3=1e-6, d4=0.03)
CELLS = [(rows, length) for rows in (1, 4, 32) for length in (16, 200, 2000)]

coefficients = st.floats(0, 10)
counts = st.integers(0, 300)


def prefill_of(model: Bilinear) -> list[Timing]:
    return [Timing(rows, length, model.prefill(rows, length)) for rows, length in CELLS]


def decode_of(model: Bilinear) -> list[Timing]:
    return [Timing(rows, length, model.iteration(rows, length)) for rows, length in CELLS]


def test_the_equations_by_hand() -> None:
    model = Bilinear(1, 2, 3, 4, 5, 6, 7, 8)
    assert model.prefill(2, 10) == 1 * 2 * 10 + 2 * 2 + 3 * 10 + 4
    assert model.iteration(2, 11) == 5 * 2 * 11 + 6 * 2 + 7 * 11 + 8
    assert model.serve(2, 10, 2) == 58 + 207 + 224
    assert model.estimate(2, 10, 2) == 58 + 207 + 224


@given(st.builds(Bilinear, *[coefficients] * 8), counts, counts, counts)
def test_the_closed_form_is_the_sum_over_iterations(model: Bilinear, rows: int, length: int, iterations: int) -> None:
    plain = math.fsum(model.iteration(rows, length + step) for step in range(1, iterations + 1))
    assert model.decode(rows, length, iterations) == pytest.approx(plain, rel=1e-12, abs=1e-12)
    assert model.serve(rows, length, iterations) == pytest.approx(model.prefill(rows, length) + plain, rel=1e-12)


def test_arrays_give_what_numbers_give() -> None:
    rows, lengths = np.array([1.0, 3.0, 8.0]), np.array([20.0, 50.0, 700.0])
    expected = [MODEL.serve(row, length, 128) for row, length in zip(rows, lengths, strict=True)]
    assert MODEL.serve(rows, lengths, 128).tolist() == pytest.approx(expected)
    assert MODEL.serve(rows, 50.0, 128).tolist() == pytest.approx([MODEL.serve(row, 50, 128) for row in rows])
    batches = np.stack([rows, lengths, np.full(3, 128.0)], axis=1)
    assert MODEL.estimate_all(batches).tolist() == pytest.approx(expected)


def test_a_fit_finds_the_coefficients_that_made_the_timings() -> None:
    found = fit(prefill_of(MODEL), decode_of(MODEL))
    assert astuple(found) == pytest.approx(astuple(MODEL), rel=1e-5)


def test_four_timings_are_enough() -> None:
    corners = [0, 2, 6, 8]
    prefill, decode = prefill_of(MODEL), decode_of(MODEL)
    found = fit([prefill[place] for place in corners], [decode[place] for place in corners])
    assert astuple(found) == pytest.approx(astuple(MODEL), rel=1e-4)


def test_a_surface_that_bends_upward_still_gets_no_negative_estimate() -> None:
    """A plane through these timings, unbounded, is below zero at the short end."""
    bent = [Timing(rows, length, 1e-8 * rows * length**2) for rows, length in CELLS]
    terms = np.array([[one.rows * one.length, one.rows, one.length, 1] for one in bent], dtype=float)
    plane = terms @ np.linalg.lstsq(terms, np.array([one.seconds for one in bent]), rcond=None)[0]
    assert plane.min() < 0
    found = fit(bent, bent)
    assert min(astuple(found)) >= 0
    assert all(found.prefill(rows, length) >= 0 and found.iteration(rows, length) >= 0 for rows, length in CELLS)


@given(st.lists(st.floats(0, 100), min_size=9, max_size=9))
def test_whatever_was_measured_more_never_costs_less(seconds: list[float]) -> None:
    timings = [Timing(*cell, second) for cell, second in zip(CELLS, seconds, strict=True)]
    found = fit(timings, timings)
    assert 0 <= found.serve(1, 1, 1) <= found.serve(2, 1, 1) <= found.serve(2, 300, 1) <= found.serve(2, 300, 50)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [(1, 16), (2, 16), (1, 32)],
        [(1, 16), (1, 32), (1, 64), (1, 128), (1, 256)],
        [(1, 16), (2, 16), (3, 16), (4, 16), (5, 16)],
        [(1, 16), (1, 16), (2, 32), (2, 32), (1, 16)],
    ],
)
def test_timings_that_do_not_determine_a_model_are_refused(cells: list[tuple[int, int]]) -> None:
    few = [Timing(*cell, 1.0) for cell in cells]
    with pytest.raises(ValueError, match="prefill timings do not determine a model: two batch sizes at two lengths"):
        fit(few, decode_of(MODEL))
    with pytest.raises(ValueError, match="decode timings do not"):
        fit(prefill_of(MODEL), few)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_model_has_no_negative_and_no_infinite_coefficient(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        Bilinear(1, 2, 3, wrong, 5, 6, 7, 8)


def test_errors_are_those_of_each_part() -> None:
    assert rmse([(1.0, 4.0), (5.0, 1.0)]) == pytest.approx(math.sqrt((9 + 16) / 2))
    prefill = [Timing(1, 10, MODEL.prefill(1, 10) + 3), Timing(2, 10, MODEL.prefill(2, 10) - 4)]
    decode = [Timing(1, 10, MODEL.iteration(1, 10) + 0.5)]
    slices = [SliceTiming(2, 10, 128, MODEL.serve(2, 10, 128) - 2)]
    errors = fit_errors(MODEL, Timings(tuple(prefill), tuple(decode), tuple(slices)))
    assert errors.prefill == pytest.approx(math.sqrt((9 + 16) / 2))
    assert (errors.iteration, errors.slices) == pytest.approx((0.5, 2))
    assert fit_errors(MODEL, Timings(tuple(prefill), tuple(decode))).slices is None
