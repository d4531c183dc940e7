"""Lengths from hidden states of the served model: a linear probe at the end of each prompt, learned while serving.

The numbers, (width + 1,): the state after a middle layer, and the logarithm of the prompt's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.clock import Clock
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import FloatMatrix
from scheduler.length.forest import Examples
from scheduler.length.learning import ServedRow
from scheduler.length.online import Fit, OnlineLearner
from scheduler.request import Request

PENALTIES = 10.0 ** np.arange(1, 6)
"""Ridge penalties of which the one with the least error is chosen, where each number has a variance of 1."""

MOST = 1024
"""Newest answers that a probe is fitted to: 16 MB of states at 4,096 numbers each."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedRidge:
    """A ridge regression of log lengths, and its errors on answers that it was not fitted to."""

    weights: Vector
    offset: float
    errors: Vector
    """True less predicted log length, ascending."""

    def distributions(self, features: FloatMatrix) -> list[LengthDistribution]:
        """Features (n, f) -> how likely each length is, by the errors of the answers so far."""
        middles = features @ self.weights + self.offset
        weights = np.full(len(self.errors), 1 / len(self.errors), dtype=np.float32)
        return [LengthDistribution.of(np.maximum(np.exp(one + self.errors), 1.0), weights) for one in middles]


def fit_ridge(answers: Examples, cut: Sequence[bool] = ()) -> CalibratedRidge:
    """Fit a ridge regression to answers, two at least.

    Each is predicted from all others for its error: that of a linear smoother is e / (1 - h), with h the diagonal of
    its hat matrix (Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, equation 7.64).
    """
    features, lengths = answers.features.astype(np.float64), np.log(np.maximum(answers.lengths, 1.0, dtype=np.float64))
    spread = features.std(axis=0)
    means, scales = features.mean(axis=0), np.where(spread > 0, spread, 1.0)
    scaled, wanted = (features - means) / scales, lengths - lengths.mean()
    squares, vectors = np.linalg.eigh(scaled @ scaled.T)
    turned = vectors.T @ wanted

    def errors(penalty: float) -> Vector:
        kept = np.maximum(squares, 0.0) / (np.maximum(squares, 0.0) + penalty)
        left: Vector = (wanted - vectors @ (kept * turned)) / (1 - 1 / len(wanted) - vectors**2 @ kept)
        return left

    penalty = min(PENALTIES, key=lambda one: float(np.abs(errors(one)).mean()))
    weights = scaled.T @ (vectors @ (turned / (np.maximum(squares, 0.0) + penalty))) / scales
    return CalibratedRidge(weights, float(lengths.mean() - means @ weights), np.sort(errors(penalty)))


class StateProbe(OnlineLearner):
    """Predicts lengths anew once prompts have been read. Event loop only, but for the work that it submits."""

    def __init__(self, submit: Callable[[Callable[[], None]], object], clock: Clock, fit: Fit = fit_ridge) -> None:
        """`submit` and `fit` as OnlineForest has them."""
        super().__init__(submit, clock, fit, most=MOST)
        self.predicted = 0
        """Lengths that were predicted."""
        self.ignored = 0
        """States with numbers that are not finite, from which nothing was predicted."""

    def predict(self, request: Request) -> LengthDistribution | None:
        """How long an answer may become, by its prompt's state; None where that tells nothing, or nothing is known."""
        features = _read(request)
        if features is None:
            self.ignored += bool(request.hidden_state)
            return None
        found = self.distributions(features[np.newaxis])
        self.predicted += found is not None
        return None if found is None else found[0]

    def learn(self, request: Request, row: ServedRow) -> None:
        """Learn from an answer that has ended."""
        features = _read(request)
        if features is not None:
            self.add(replace(row, features=features))


def _read(request: Request) -> NDArray[np.float32] | None:
    """The numbers that a request's length is predicted from; None without a state that is finite."""
    state = np.frombuffer(request.hidden_state, dtype=np.float32)
    if not len(state) or not np.isfinite(state).all():
        return None
    return np.append(state, np.float32(np.log(request.input_length)))
