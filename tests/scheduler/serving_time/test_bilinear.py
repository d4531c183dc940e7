"""The bilinear serving-time model: its closed form, its fit, and that no estimate is below zero."""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from engine.measure.timing import SliceTiming, Timing, Timings
from engine.messages import NEVER
from scheduler.serving_time.bilinear import Bilinear, fit, fit_errors, fit_surfaces, kept_from, rmse

MODEL = Bilinear(p1=1e-4, p2=2e-3, p3=3e-5, p4=0.02, d1=2e-7, d2=5e-4, d3=1e-6, d4=0.03)
CELLS = [(rows, length) for rows in (1, 4, 32) for length in (16, 200, 2000)]

coefficients = st.floats(0, 10)
counts = st.integers(0, 300)


PREFILL = [Timing(*cell, MODEL.prefill(*cell)) for cell in CELLS]
DECODE = [Timing(*cell, MODEL.iteration(*cell)) for cell in CELLS]


def test_the_equations_by_hand() -> None:
    model = Bilinear(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert model.prefill(2, 10) == 1 * 2 * 10 + 2 * 2 + 3 * 10 + 4
    assert model.iteration(2, 11) == 5 * 2 * 11 + 6 * 2 + 7 * 11 + 8
    assert model.serve(2, 10, 2) == model.estimate(2, 10, 2) == 58 + 207 + 224
    assert (model.copy(3), model.slowed(2).copy(3), MODEL.copy(1000.0)) == (9 * 3 + 10, 74, 0)


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
    assert replace(MODEL, c1=9.0, c0=10.0).copy(lengths[:2]).tolist() == [190.0, 460.0]


KEPT = [((2, 1), (1, 6), 5), ((5e-324, 0), (0, 1), NEVER), ((0, 1), (5e-324, 0), 0)]


@pytest.mark.parametrize(("reading", "copying", "kept"), KEPT)
def test_k_and_v_are_kept_if_that_pays(reading: tuple[float, float], copying: tuple[float, float], kept: int) -> None:
    """2·4 + 1 < 4 + 6, and 2·5 + 1 = 5 + 6."""
    assert kept_from(Bilinear(*reading, 100, 100, 0, 0, 0, 0, *copying)) == kept


def test_where_reading_grows_with_the_square_rows_are_kept_from_some_length_on() -> None:
    square = Bilinear(1, 0, 0, 0, 0, 0, 0, 0, 2, 3, p5=0.5)  # L²/2 + L against 2·L + 3
    assert (kept_from(square), kept_from(replace(square, c0=0.0, p2=1.0))) == (4, 0)
    assert kept_from(replace(square, p5=5e-324)) == NEVER


@given(*[st.integers(0, 20)] * 4, st.integers(1, 100))
def test_each_row_is_judged_by_what_it_adds_to_a_prefill(p1: int, p2: int, c1: int, c0: int, length: int) -> None:
    model = Bilinear(p1, p2, 7, 9, 0, 0, 0, 0, c1, c0)
    reading = model.prefill(5, length) - model.prefill(4, length)
    assert (length >= kept_from(model)) == (model.copy(length) <= reading and c1 <= p1)


def test_copies_are_fitted_by_the_row() -> None:
    copies = [Timing(rows, length, rows * (2e-5 * length + 1e-3)) for rows, length in ((8, 16), (8, 100), (4, 1000))]
    found = fit(PREFILL, DECODE, copies)
    assert (found.c1, found.c0) == pytest.approx((2e-5, 1e-3), rel=1e-5)
    assert fit(PREFILL, DECODE).copy(1000.0) == 0
    for few in ([], copies[:1], [copies[0], copies[0]]):
        with pytest.raises(ValueError, match="copies do not determine a model: two lengths are needed"):
            fit(PREFILL, DECODE, few)


@pytest.mark.parametrize(("cells", "off"), [(range(9), 1e-5), ((0, 2, 6, 8), 1e-4)])
def test_a_fit_finds_the_coefficients_again_also_from_four_timings(cells: Sequence[int], off: float) -> None:
    found = fit([PREFILL[place] for place in cells], [DECODE[place] for place in cells])
    assert astuple(found) == pytest.approx(astuple(MODEL), rel=off)


def test_a_fit_is_right_at_both_ends_where_attention_makes_reading_grow_faster_than_its_length() -> None:
    """Without the square, a fit to 2,048 tokens was a fifth too dear at 200 and a third too cheap at its end."""

    grid = [
        Timing(rows, length, rows * (5.5e-4 * length + 3.5e-7 * length**2) + 0.03)
        for rows, length in product((1, 4, 16), (16, 42, 111, 293, 775, 2048))
    ]
    found = fit(grid, DECODE)
    assert all(found.prefill(one.rows, one.length) == pytest.approx(one.seconds, rel=0.02) for one in grid)
    short = fit([one for one in grid if 40 < one.length < 300 and one.rows < 16], DECODE)
    for rows, length in ((1, 50), (1, 200), (4, 100), (1, 600)):
        assert short.prefill(rows, length) == pytest.approx(found.prefill(rows, length), rel=0.1)


def test_a_surface_that_bends_upward_still_gets_no_negative_estimate() -> None:
    """A plane through these timings, unbounded, is below zero at the short end."""
    bent = [Timing(rows, length, 1e-8 * rows * length**2) for rows, length in CELLS]
    terms = np.array([[one.rows * one.length, one.rows, one.length, 1] for one in bent], dtype=float)
    plane = terms @ np.linalg.lstsq(terms, np.array([one.seconds for one in bent]), rcond=None)[0]
    assert plane.min() < 0
    found = fit(PREFILL, bent)
    assert min(astuple(found)) >= 0
    assert all(found.iteration(rows, length) >= 0 for rows, length in CELLS)


@given(st.lists(st.floats(0, 100), min_size=9, max_size=9))
def test_whatever_was_measured_more_never_costs_less(seconds: list[float]) -> None:
    timings = [Timing(*cell, second) for cell, second in zip(CELLS, seconds, strict=True)]
    found = fit(timings, timings)
    assert 0 <= found.serve(1, 1, 1) <= found.serve(2, 1, 1) <= found.serve(2, 300, 1) <= found.serve(2, 300, 50)


UNDETERMINED = [
    [],
    [(1, 16), (2, 16), (1, 32)],
    [(1, 16), (1, 32), (1, 64), (1, 128), (1, 256)],
    [(1, 16), (2, 16), (3, 16), (4, 16), (5, 16)],
    [(1, 16), (1, 16), (2, 32), (2, 32), (1, 16)],
]


@pytest.mark.parametrize("cells", UNDETERMINED)
def test_timings_that_do_not_determine_a_model_are_refused(cells: list[tuple[int, int]]) -> None:
    few = [Timing(*cell, 1.0) for cell in cells]
    with pytest.raises(ValueError, match="prefill timings do not determine a model: two batch sizes at two lengths"):
        fit(few, DECODE)
    with pytest.raises(ValueError, match="decode timings do not"):
        fit(PREFILL, few)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_model_has_no_negative_and_no_infinite_coefficient(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        Bilinear(1, 2, 3, wrong, 5, 6, 7, 8)


def test_errors_are_those_of_each_part() -> None:
    assert rmse([(1.0, 4.0), (5.0, 1.0)]) == pytest.approx(math.sqrt((9 + 16) / 2))
    prefill = Timing(1, 10, MODEL.prefill(1, 10) + 0.003), Timing(2, 10, MODEL.prefill(2, 10) - 0.004)
    timings = Timings(prefill, (Timing(1, 10, MODEL.iteration(1, 10) + 0.5),))
    slices = (SliceTiming(2, 10, 128, MODEL.serve(2, 10, 128) - 2),)
    errors = fit_errors(MODEL, replace(timings, slices=slices))
    assert errors.prefill == pytest.approx(math.sqrt((9 + 16) / 2) / 1000)
    assert (errors.iteration, errors.slices, errors.copies) == pytest.approx((0.5, 2, None))
    copying, copies = replace(MODEL, c1=0.5, c0=2.0), (Timing(4, 10, 4 * 8.0), Timing(2, 20, 2 * 11.0))
    errors = fit_errors(copying, replace(timings, copies=copies))
    assert (errors.copies, errors.slices) == pytest.approx((1.0, None)), "7 and 12 s a row were estimated"


def test_prompts_that_were_read_one_at_a_time_tell_what_a_pass_costs_and_not_a_row() -> None:
    """A minute of serving: a single group of two decided how much of a prompt's price was the row's, so that two of 16
    tokens were 46 % too dear. What `lengthwise profile` measured then stands below."""
    lengths = (16, 20, 35, 45, 63, 88, 130, 186, 254)
    seconds = (0.0320, 0.0351, 0.0438, 0.0587, 0.0720, 0.0854, 0.1124, 0.1592, 0.2152)
    alone = [Timing(1, length, took) for length, took in zip(lengths, seconds, strict=True)]
    found = fit_surfaces([*alone, Timing(2, 237, 0.3543)], DECODE)
    for rows, length, measured in ((2, 16, 0.0369), (2, 42, 0.0810), (1, 111, 0.1020), (2, 111, 0.1805)):
        assert found.prefill(rows, length) == pytest.approx(measured, rel=0.17)
