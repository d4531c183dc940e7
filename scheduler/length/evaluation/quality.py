"""Quality of predicted lengths: the figures of SSJF's Table 2, errors in tokens, order kept, and reliability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.length.evaluation.ablation import Accuracy, accuracy

BINS = 10
"""Parts of the rows, by predicted length, whose predictions are compared with what came."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows of similar predicted length; of a reliable predictor the two means agree."""

    rows: int
    predicted: float
    actual: float


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of predictions on rows held out."""

    accuracy: float
    """Share of rows that are predicted into their own quantile class; with cuts at 25, 50, 75 and
    99 % a guess of one class has 0.25."""
    f1: float
    """Mean over the classes of the harmonic mean of precision and recall."""
    errors: Accuracy
    reliability: tuple[Bin, ...]
    """Bins by ascending predicted length."""


def quality(predicted: NDArray[np.float32], actual: NDArray[np.float32], edges: Sequence[float]) -> Quality:
    """Predictions (n,) against true lengths (n,); `edges` are the least lengths of all classes but the first."""
    from sklearn.metrics import f1_score  # slow to import, and only wanted where predictors are measured

    true, guessed = _classes(actual, edges), _classes(predicted, edges)
    f1 = float(f1_score(true, guessed, labels=range(len(edges) + 1), average="macro", zero_division=0))
    return Quality(float(np.mean(true == guessed)), f1, accuracy(predicted, actual), _reliability(predicted, actual))


def _classes(lengths: NDArray[np.float32], edges: Sequence[float]) -> NDArray[np.intp]:
    return np.searchsorted(np.asarray(edges, dtype=np.float32), lengths, side="right")


def _reliability(predicted: NDArray[np.float32], actual: NDArray[np.float32]) -> tuple[Bin, ...]:
    """Equal predictions are never torn apart, so there may be fewer bins than BINS."""
    cuts = np.unique(np.quantile(predicted, np.arange(1, BINS) / BINS))
    places = np.searchsorted(cuts, predicted, side="left")
    bins = (places == place for place in np.unique(places))
    return tuple(Bin(int(one.sum()), float(predicted[one].mean()), float(actual[one].mean())) for one in bins)
