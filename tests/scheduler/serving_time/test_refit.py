"""A model that is fitted again from its profile and from what batches took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.measure.timing import Timing, Timings
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.refit import FEWEST, error, refit, relative_error
from scheduler.serving_time.served_batch import ClosedBatch
from tests.scheduler.serving_time.closed import PROFILE, mixed, timings, took

OTHER = Bilinear(p1=1.5e-4, p2=2.5e-3, p3=4e-5, p4=0.02, d1=3e-7, d2=4e-4, d3=2e-6, d4=0.035, c1=1e-6, c0=1e-3)
"""Another machine, but for copies: prefill and iterations have not become slower by the same."""

NOTHING = Timings((), ())


def estimates(model: Bilinear) -> list[float]:
    """Of what no batch below was like."""
    return [
        model.serve(2.0, 1000.0, 100.0),
        model.serve(16.0, 50.0, 100.0),
        model.prefill(6.0, 300.0),
        model.iteration(6, 300),
    ]


def test_batches_alone_give_the_model_that_made_them() -> None:
    """Some have fresh rows only, some none, some both; what copies took is known and left as it is."""
    assert astuple(refit(PROFILE, NOTHING, list(mixed(OTHER)))) == pytest.approx(astuple(OTHER), rel=1e-3)


def test_beside_a_profile_that_is_wrong_in_its_proportions_batches_prevail() -> None:
    batches = list(mixed(OTHER)) * 5
    found = refit(PROFILE, timings(), batches)
    assert relative_error(PROFILE, batches) > 0.15 and relative_error(found, batches) < 0.01
    assert estimates(found) == pytest.approx(estimates(OTHER), rel=0.05)


def test_batches_that_the_profile_explains_leave_it() -> None:
    assert astuple(refit(PROFILE, timings(), list(mixed(PROFILE)))) == pytest.approx(astuple(PROFILE), rel=1e-3)


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_a_machine_of_another_pace_is_found_from_slices_of_one_length(factor: float) -> None:
    """Nothing else is known of its pace, and what the profile says of other lengths and sizes is scaled with it."""
    now = PROFILE.slowed(factor)
    batches = [replace(took(now, 6, 100, fresh=6), seconds=took(PROFILE, 6, 100).seconds * factor)] * FEWEST
    assert estimates(refit(PROFILE, timings(), batches)) == pytest.approx(estimates(now), rel=1e-3)


def test_copies_are_subtracted_and_not_fitted() -> None:
    """By hand: rows without prefill, iterations of a tenth of a second each, and 2 s of copies of 100 tokens each."""
    profile = Bilinear(1e-3, 0, 0, 0.1, 0, 0, 0, 0.1, c1=0.02, c0=0.0)
    cells = Timings((Timing(1, 10, profile.prefill(1, 10)),), (Timing(1, 10, 0.1), Timing(4, 500, 0.1)))
    batches = [ClosedBatch(2, 100, 10, 0, 0, 200, seconds=4.0 + 2 * 1.0)] * FEWEST
    found = refit(profile, cells, batches)
    assert (found.c1, found.c0) == (0.02, 0.0)
    assert found.iteration(2, 106) == pytest.approx(0.2, rel=1e-3)


def test_noise_is_averaged_out() -> None:
    random = np.random.default_rng(7)
    noisy = [replace(one, seconds=one.seconds * random.normal(1, 0.1)) for one in list(mixed(OTHER)) * 3]
    found = refit(PROFILE, timings(), noisy)
    clean = list(mixed(OTHER))
    assert relative_error(found, clean) < 0.05 < relative_error(PROFILE, clean)


def test_a_batch_that_stalled_pulls_little() -> None:
    """A minute long instead of some seconds, among a hundred."""
    batches = list(mixed(PROFILE))[:100]
    stalled = [*batches[:50], replace(batches[50], seconds=batches[50].seconds * 10), *batches[51:]]
    assert estimates(refit(PROFILE, timings(), stalled)) == pytest.approx(estimates(PROFILE), rel=0.05)


def test_a_few_batches_say_nothing() -> None:
    slow = [took(PROFILE, 6, 100, factor=2.0)] * (FEWEST - 1)
    assert refit(PROFILE, timings(), slow) is PROFILE
    assert refit(PROFILE, timings(), [*slow, replace(slow[0], seconds=0.0)]) is PROFILE, "it took no time at all"
    assert refit(PROFILE, timings(), [*slow, slow[0]]) is not PROFILE


def test_what_explains_batches_worse_than_the_profile_is_not_taken() -> None:
    """The timings are of another machine than the model; no sum of both is as good as the model, which is exact."""
    assert refit(PROFILE, timings(OTHER), list(mixed(PROFILE))[:FEWEST]) is PROFILE


def test_errors_by_hand() -> None:
    """A second an iteration: 8 and 12 s of 10."""
    model = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)
    batches = [ClosedBatch(1, 5, 8, 0, 0, 5, seconds=10.0), ClosedBatch(1, 5, 12, 1, 5, 0, seconds=10.0)]
    assert (error(model, batches), relative_error(model, batches)) == pytest.approx((2.0, 0.2))


@st.composite
def served(draw: st.DrawFn) -> ClosedBatch:
    rows, length = draw(st.integers(1, 64)), draw(st.integers(1, 2000))
    fresh = draw(st.integers(0, rows))
    return ClosedBatch(
        rows=rows,
        input_length=length,
        iterations=draw(st.integers(0, 256)),
        fresh_rows=fresh,
        fresh_length=draw(st.integers(1, length)) if fresh else 0,
        copied_tokens=(rows - fresh) * length,
        seconds=draw(st.floats(1e-3, 1e3)),
    )


@settings(max_examples=25)
@given(st.lists(served(), min_size=FEWEST, max_size=3 * FEWEST))
def test_whatever_batches_took_estimates_are_finite_never_negative_and_no_worse(batches: Sequence[ClosedBatch]) -> None:
    found = refit(PROFILE, timings(), batches)
    assert all(np.isfinite(value) and value >= 0 for value in astuple(found))
    assert all(np.isfinite(value) and value >= 0 for value in estimates(found))
    assert relative_error(found, batches) <= relative_error(PROFILE, batches)
