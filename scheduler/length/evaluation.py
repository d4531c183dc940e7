"""How well lengths can be predicted on answers that were held out: the strategies of Magnus's Table II, the figures of
SSJF's Table 2, a contest between a forest that was just grown, the one in use, and the user input length alone; and
which served answers tell how good a prediction was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from engine.messages import FinishReason
from scheduler.length.features import Ablation, select
from scheduler.length.forest import Examples, Forest, Growth, grow
from scheduler.length.oracle import is_replayed
from scheduler.length.prediction import TAILS, LengthDistribution
from scheduler.request import Request

TWICE = 2.0


def within_twice(predicted: float, generated: float) -> bool:
    """Whether neither of two lengths is more than twice the other."""
    return max(predicted, generated) <= TWICE * min(predicted, generated)


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """Whether an answer that ended can be held against its prediction.

    One that max_tokens or the context has cut has no true length, and a prediction of max_tokens only repeats what the
    client asked for.
    """
    whole, predicted = reason is FinishReason.STOP or is_replayed(request.sampling), request.predicted_length
    return whole and predicted is not None and round(predicted) < request.sampling.max_tokens


def is_inside(request: Request) -> bool | None:
    """Whether the length of an answer is in the interval that was predicted with 90 %; None where there was none."""
    lengths = request.distribution
    if lengths is None:
        return None
    low, high = (round(lengths.quantile(share)) for share in TAILS)
    return low <= request.generated <= high


Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors in tokens, and how well the order is kept: Kendall's tau, NaN if all are predicted equal."""

    mae: float
    rmse: float
    tau: float
    within_twice: float
    """Share of the predictions of which neither the length nor the prediction is more than twice the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Examples to learn from and to be tested with, and each one's task."""

    train: Examples
    test: Examples
    train_tasks: Sequence[str]
    test_tasks: Sequence[str]
    held: NDArray[np.bool_]
    """Which of all examples are for the test, (n,)."""


def split(examples: Examples, tasks: Sequence[str], share: float, seed: int, *, by_task: bool = False) -> Split:
    """Hold a share of each task's examples out at random, or, `by_task`, all examples of a share of the tasks."""
    rng = np.random.default_rng(seed)
    names = np.array(tasks)
    held = np.zeros(len(examples), dtype=bool)
    groups = [np.flatnonzero(names == task) for task in np.unique(names)]
    if by_task:
        chosen = rng.permutation(len(groups))[: max(1, round(share * len(groups)))]
        held[np.concatenate([groups[place] for place in chosen])] = True
    for own in () if by_task else groups:
        held[rng.permutation(own)[: round(share * len(own))]] = True
    return Split(examples.where(~held), examples.where(held), names[~held].tolist(), names[held].tolist(), held)


def accuracy(predicted: NDArray[np.float32], actual: NDArray[np.float32]) -> Accuracy:
    """Accuracy of predictions (n,) against true lengths (n,)."""
    errors = predicted.astype(np.float64) - actual
    constant = np.ptp(predicted) == 0 or np.ptp(actual) == 0
    from scipy.stats import kendalltau  # slow to import, and only wanted where predictors are measured

    tau = float("nan") if constant else float(kendalltau(predicted, actual).statistic)
    twice = np.mean([within_twice(one, length) for one, length in zip(predicted, actual, strict=True)])
    return Accuracy(float(np.abs(errors).mean()), float(np.sqrt((errors**2).mean())), tau, float(twice))


def means(predicted: Sequence[LengthDistribution]) -> NDArray[np.float32]:
    """Expected lengths (n,) of distributions."""
    return np.array([one.mean for one in predicted], dtype=np.float32)


def covered(predicted: Sequence[LengthDistribution], actual: NDArray[np.float32]) -> float:
    """Share of lengths (n,) within the predicted intervals of nine in ten."""
    return float(np.mean([one.coverage(length) for one, length in zip(predicted, actual.tolist(), strict=True)]))


def _groups(ablation: Ablation, data: Split) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """The forests of an ablation: which examples each learns from, and which answers it predicts. RAFT has one for each
    task of which there is both."""
    if ablation is Ablation.UILO:
        return []
    if ablation is not Ablation.RAFT:
        return [(np.ones(len(data.train), dtype=bool), np.ones(len(data.test), dtype=bool))]
    train, test = np.array(data.train_tasks), np.array(data.test_tasks)
    return [(train == task, test == task) for task in sorted({*data.train_tasks} & {*data.test_tasks})]


def grown_trees(ablation: Ablation, data: Split, growth: Growth) -> int:
    """How many trees `predict` grows."""
    return growth.trees * len(_groups(ablation, data))


def predict(
    ablation: Ablation, data: Split, growth: Growth, advance: Advance | None = None
) -> list[LengthDistribution]:
    """Learn from one part, and predict the lengths of the other's answers, in order; `advance` is called with the
    number of new trees."""
    features = data.test.features
    if ablation is Ablation.UILO:
        return [LengthDistribution.certain(length) for length in features[:, -1].tolist()]
    predicted = [guess(data.train)] * len(data.test)  # for tasks never seen before
    for learned, asked in _groups(ablation, data):
        own = data.train.where(learned)
        forest = grow(Examples(select(own.features, ablation), own.lengths), growth, advance)
        found = forest.distributions(select(features[asked], ablation))
        for place, distribution in zip(np.flatnonzero(asked).tolist(), found, strict=True):
            predicted[place] = distribution
    return predicted


def guess(examples: Examples) -> LengthDistribution:
    """The distribution of all lengths, whatever the request: the baseline of every predictor."""
    return LengthDistribution.of(examples.lengths, np.ones_like(examples.lengths))


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
    judges = np.ones(len(held_out), dtype=bool)
    if old is not None:
        learned = set(_keys(old.examples))
        fresh = np.array([key not in learned for key in _keys(held_out)])
        if fresh.mean() >= FRESH_SHARE:
            judges = fresh
        else:
            old = None
    answers = held_out.where(judges)
    predictions = {Contestant.NEW: predicted[judges]}
    if old is not None:
        predictions[Contestant.OLD] = old.predict(answers.features)
    predictions[Contestant.PLAIN] = answers.features[:, -1]
    errors = {one: float(np.abs(lengths - answers.lengths).mean()) for one, lengths in predictions.items()}
    return Contest(errors, len(answers))


def _keys(examples: Examples) -> list[tuple[float, ...]]:
    """What tells whether two answers are the same."""
    rows = np.column_stack((examples.features, examples.lengths)).round(DECIMALS)
    return [tuple(row) for row in rows.tolist()]
