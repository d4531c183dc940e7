"""Quality of predicted lengths: the figures of SSJF's Table 2, errors in tokens, order kept, and reliability.

Compares ways to predict lengths on answers that none has learned from: a forest that was just grown, the one in use,
and the user input length alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduler.length.evaluation.ablation import Accuracy, accuracy
from scheduler.length.forest import Examples, Forest

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


FRESH_SHARE = 0.5
"""Share of the held-out answers that the forest in use must not have learned from, to be judged by those."""

DECIMALS = 3
"""Decimals of features that are compared: an embedding differs a little with the other texts of the same call."""


class Contestant(StrEnum):
    """Ways to predict lengths; of equally good ones, the first is taken."""

    NEW = "new forest"
    OLD = "old forest"
    PLAIN = "user input length"


@dataclass(frozen=True, slots=True)
class Contest:
    """Errors of the contestants."""

    errors: Mapping[Contestant, float]
    """Mean absolute errors in tokens."""
    rows: int
    """Answers by which the contestants were judged."""

    @property
    def winner(self) -> Contestant:
        return min(self.errors, key=lambda one: self.errors[one])


def judge(held_out: Examples, predicted: NDArray[np.float32], old: Forest | None) -> Contest:
    """Compare a new forest's predictions of answers that were held out, (n,), with the others'.

    The old forest is judged by those that it has not learned from, and so are the others then; where these are too
    few, it takes no part.
    """
    if old is not None:
        fresh = ~_is_known(held_out, old.examples)
        if fresh.mean() >= FRESH_SHARE:
            return _judge(held_out.where(fresh), predicted[fresh], old)
    return _judge(held_out, predicted, None)


def _judge(answers: Examples, predicted: NDArray[np.float32], old: Forest | None) -> Contest:
    predictions = {Contestant.NEW: predicted}
    if old is not None:
        predictions[Contestant.OLD] = old.predict(answers.features)
    predictions[Contestant.PLAIN] = answers.features[:, -1]
    errors = {one: float(np.abs(lengths - answers.lengths).mean()) for one, lengths in predictions.items()}
    return Contest(errors, len(answers))


def _is_known(answers: Examples, known: Examples) -> NDArray[np.bool_]:
    """Whether each of the answers is among the known ones, (n,)."""
    seen = set(_keys(known))
    return np.array([key in seen for key in _keys(answers)], dtype=bool)


def _keys(examples: Examples) -> list[tuple[float, ...]]:
    rows = np.column_stack((examples.features, examples.lengths)).round(DECIMALS)
    return [tuple(row) for row in rows.tolist()]
