"""Accuracy of length predictions on held-out answers (Magnus, Table II; SSJF, Table 2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import Ablation, select
from scheduler.length.forest import Examples, Forest, Growth, grow
from scheduler.length.likely import within_twice
from scheduler.length.prediction import LengthDistribution

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    train: Examples
    test: Examples
    train_tasks: Sequence[str]
    test_tasks: Sequence[str]
    held: NDArray[np.bool_]  # (n,)


def split(examples: Examples, tasks: Sequence[str], share: float, seed: int, *, by_task: bool = False) -> Split:
    """Hold out a share of each task's examples, or, `by_task`, all of a share of the tasks."""
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


def accuracy(predicted: NDArray[np.float32], actual: NDArray[np.float32]) -> dict[str, float]:
    """Errors in tokens; Kendall's tau is NaN if all predictions are equal."""
    errors = predicted.astype(np.float64) - actual
    constant = np.ptp(predicted) == 0 or np.ptp(actual) == 0
    from scipy.stats import kendalltau  # slow to import

    tau = float("nan") if constant else float(kendalltau(predicted, actual).statistic)
    twice = np.mean([within_twice(one, length) for one, length in zip(predicted, actual, strict=True)])
    mae, rmse = float(np.abs(errors).mean()), float(np.sqrt((errors**2).mean()))
    return {"mae": mae, "rmse": rmse, "tau": tau, "within_twice": float(twice)}


def means(predicted: Sequence[LengthDistribution]) -> NDArray[np.float32]:
    return np.array([one.mean for one in predicted], dtype=np.float32)


def covered(predicted: Sequence[LengthDistribution], actual: NDArray[np.float32]) -> float:
    return float(np.mean([one.coverage(length) for one, length in zip(predicted, actual.tolist(), strict=True)]))


def _groups(ablation: Ablation, data: Split) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """What each forest learns from and predicts; RAFT grows one for each task."""
    if ablation is Ablation.UILO:
        return []
    if ablation is not Ablation.RAFT:
        return [(np.ones(len(data.train), dtype=bool), np.ones(len(data.test), dtype=bool))]
    train, test = np.array(data.train_tasks), np.array(data.test_tasks)
    return [(train == task, test == task) for task in sorted({*data.train_tasks} & {*data.test_tasks})]


def grown_trees(ablation: Ablation, data: Split, growth: Growth) -> int:
    return growth.trees * len(_groups(ablation, data))


def predict(ablation: Ablation, data: Split, growth: Growth, watch: Advance | None = None) -> list[LengthDistribution]:
    """Lengths of the test part, in order; `watch` is called with the number of new trees."""
    features = data.test.features
    if ablation is Ablation.UILO:
        return [LengthDistribution.certain(length) for length in features[:, -1].tolist()]
    predicted = [guess(data.train)] * len(data.test)  # for unseen tasks
    for learned, asked in _groups(ablation, data):
        own = data.train.where(learned)
        forest = grow(Examples(select(own.features, ablation), own.lengths), growth, watch)
        found = forest.distributions(select(features[asked], ablation))
        for place, distribution in zip(np.flatnonzero(asked).tolist(), found, strict=True):
            predicted[place] = distribution
    return predicted


def guess(examples: Examples) -> LengthDistribution:
    return LengthDistribution.of(examples.lengths, np.ones_like(examples.lengths))


def quality(predicted: NDArray[np.float32], actual: NDArray[np.float32], edges: Sequence[float]) -> dict[str, float]:
    """The share in their own quantile class (0.25 by guessing, with cuts at 25, 50, 75 and 99 %), F1, and `accuracy`.
    `edges` are the lower bounds of all classes but the first.
    """
    from sklearn.metrics import f1_score

    bounds = np.asarray(edges, dtype=np.float32)
    true, guessed = np.digitize(actual, bounds), np.digitize(predicted, bounds)
    f1 = float(f1_score(true, guessed, labels=range(len(edges) + 1), average="macro", zero_division=0))
    return {"accuracy": float(np.mean(true == guessed)), "f1": f1, **accuracy(predicted, actual)}


FRESH_SHARE = 0.5  # of held-out answers new to the forest in use, from which only these judge

DECIMALS = 3  # an embedding varies slightly with its batch


class PredictorContestant(StrEnum):
    """In order of preference."""

    NEW = "new forest"
    OLD = "old forest"
    PLAIN = "user input length"


@dataclass(frozen=True, slots=True)
class Contest:
    errors: Mapping[PredictorContestant, float]  # mean absolute, in tokens
    rows: int

    @property
    def winner(self) -> PredictorContestant:
        return min(self.errors, key=lambda one: self.errors[one])


def judge(held_out: Examples, predicted: NDArray[np.float32], old: Forest | None) -> Contest:
    """Compare a new forest on held-out answers (n,); the old one takes part where enough of them are new to it."""
    judges = np.ones(len(held_out), dtype=bool)
    if old is not None:
        learned = set(_keys(old.examples))
        fresh = np.array([key not in learned for key in _keys(held_out)])
        judges, old = (fresh, old) if fresh.mean() >= FRESH_SHARE else (judges, None)
    answers = held_out.where(judges)
    predictions = {PredictorContestant.NEW: predicted[judges]}
    if old is not None:
        predictions[PredictorContestant.OLD] = old.predict(answers.features)
    predictions[PredictorContestant.PLAIN] = answers.features[:, -1]
    errors = {one: float(np.abs(lengths - answers.lengths).mean()) for one, lengths in predictions.items()}
    return Contest(errors, len(answers))


def _keys(examples: Examples) -> list[tuple[float, ...]]:
    return [*map(tuple, np.column_stack((examples.features, examples.lengths)).round(DECIMALS).tolist())]
