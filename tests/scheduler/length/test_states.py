"""The probe on hidden states: what it computes, how soon it answers, how well intervals cover, what it ignores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scheduler.length.forest import Examples
from scheduler.length.learning import ServedRow
from scheduler.length.online import COVERAGE, TAILS
from scheduler.length.states import PENALTIES, StateProbe, fit_ridge
from scheduler.request import Request
from scheduler.serving_time.machine import inline
from tests.scheduler.fakes import VirtualClock, request

WIDTH = 48


def answers(rows: int, *, noise: float = 0.3, seed: int = 0) -> Examples:
    """Lengths whose logarithm is a direction of the states, and noise; the numbers differ in size, as states do."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, WIDTH))
    logs = 4.0 + 0.3 * states[:, :8].sum(axis=1) + noise * rng.normal(size=rows)
    return Examples((states * np.logspace(-2, 3, WIDTH)).astype(np.float32), np.exp(logs).astype(np.float32))


@pytest.mark.parametrize("rows", [WIDTH // 2, 3 * WIDTH])
def test_it_is_the_ridge_regression_of_scikit_learn_with_the_best_penalty_and_its_errors_on_rows_left_out(
    rows: int,
) -> None:
    seen, unseen = answers(rows), answers(20, seed=1)
    found = fit_ridge(seen)
    logs = np.log(seen.lengths)
    scaled = StandardScaler().fit_transform(seen.features)
    left_out = {
        penalty: logs - cross_val_predict(Ridge(penalty), scaled, logs, cv=LeaveOneOut()) for penalty in PENALTIES
    }
    best = min(left_out, key=lambda penalty: float(np.abs(left_out[penalty]).mean()))
    np.testing.assert_allclose(found.errors, np.sort(left_out[best]), rtol=1e-3, atol=1e-4)
    expected = make_pipeline(StandardScaler(), Ridge(best)).fit(seen.features, logs).predict(unseen.features)
    np.testing.assert_allclose(unseen.features @ found.weights + found.offset, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("noise", [0.1, 0.8])
def test_nine_in_ten_answers_to_come_are_within_the_interval_however_noisy_they_are(noise: float) -> None:
    unseen = answers(600, noise=noise, seed=1)
    predicted = fit_ridge(answers(150, noise=noise)).distributions(unseen.features)
    assert all(one.is_possible for one in predicted)
    low, high = (np.array([one.quantile(share) for one in predicted]) for share in TAILS)
    assert COVERAGE - 0.06 <= np.mean((low <= unseen.lengths) & (unseen.lengths <= high)) <= COVERAGE + 0.06


def test_answers_without_anything_to_learn_from_have_the_distribution_of_all() -> None:
    lengths = np.random.default_rng(0).integers(10, 200, 100).astype(np.float32)
    (found,) = fit_ridge(Examples(np.ones((100, 4), dtype=np.float32), lengths)).distributions(
        np.ones((1, 4), np.float32)
    )
    assert found.quantile(0.5) == pytest.approx(np.median(lengths), rel=0.05)


def asking(state: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Request:
    one = request(length=7)
    one.hidden_state = state.astype(np.float32).tobytes()
    return one


def test_after_a_hundred_answers_it_tells_how_long_others_become() -> None:
    probe, seen, unseen = StateProbe(inline, VirtualClock()), answers(100), answers(50, seed=1)
    assert probe.predict(asking(unseen.features[0])) is None
    for state, length in zip(seen.features, seen.lengths, strict=True):
        probe.learn(asking(state), ServedRow((), 50.0, max(1, round(float(length)))))
    found = [probe.predict(asking(state)) for state in unseen.features]
    means = np.array([one.mean for one in found if one is not None])
    assert len(means) == probe.predicted == 50
    assert np.corrcoef(np.log(means), np.log(unseen.lengths))[0, 1] > 0.7


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_state_with_a_number_that_is_not_finite_is_counted_and_harms_nothing(wrong: float) -> None:
    probe, seen = StateProbe(inline, VirtualClock()), answers(100)
    broken = seen.features[0].copy()
    broken[3] = wrong
    for state in seen.features:
        probe.learn(asking(state), ServedRow((), 50.0, 60))
        probe.learn(asking(broken), ServedRow((), 50.0, 60))
    assert probe.predict(asking(broken)) is None and probe.ignored == 1
    assert probe.predict(asking(seen.features[0])) is not None and probe.failures == 0
    assert probe.predict(request()) is None and probe.ignored == 1, "one whose state was not told"
