"""The tasks that SSJF's proxy can be trained for (Table 2), and ranking: targets, losses, and the lengths that outputs
stand for.

It knows neither texts nor encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

CUTS = (0.25, 0.5, 0.75, 0.99)
"""Quantiles that part the classes of all tasks but the binary one, as the authors' program has them
(`preprocess_dataset.py`; the text, section 3.1, names none)."""


RANKS = tuple(np.linspace(0.0, 1.0, 33).tolist())
"""Quantiles at which the scores of a ranking are held against lengths."""


class Task(StrEnum):
    """The meaning of the head's output, and the loss that it is trained with (SSJF, section 3.1)."""

    REGRESSION_L1 = "regression-l1"
    """The length; absolute error. The paper's choice."""
    REGRESSION_MSE = "regression-mse"
    """The length; squared error."""
    CLASSIFICATION = "classification"
    """A score for each class; cross-entropy."""
    ORDINAL_L1 = "ordinal-l1"
    """The number of the class as a real value; absolute error."""
    ORDINAL_MSE = "ordinal-mse"
    """The number of the class as a real value; squared error."""
    BINARY = "binary"
    """A score for each side of the median; cross-entropy."""
    RANKING = "ranking"
    """A score that grows with the length; ListMLE over each batch (vLLM-LTR: Fu et al., "Efficient LLM Scheduling by
    Learning to Rank", NeurIPS 2024, 2408.15792)."""

    @property
    def classes(self) -> int:
        return len(self.cuts) + 1

    @property
    def cuts(self) -> tuple[float, ...]:
        """Quantiles of the lengths that part its classes; a ranking has none."""
        return {Task.BINARY: (0.5,), Task.RANKING: ()}.get(self, CUTS)

    @property
    def scores_classes(self) -> bool:
        """Whether there is an output for each class, else there is one in all."""
        return self in (Task.CLASSIFICATION, Task.BINARY)

    @property
    def wants_values(self) -> bool:
        """Whether it learns from lengths as they are, not from their classes."""
        return self in (Task.REGRESSION_L1, Task.REGRESSION_MSE, Task.RANKING)


@dataclass(frozen=True, slots=True)
class Scale:
    """The relation of lengths and outputs, from the lengths of a training set."""

    centre: float
    """Tokens for which a regression's output is 0: the median for L1, the mean for MSE, as these losses have it."""
    spread: float
    """Tokens between outputs that differ by 1. Makes a loss of about 1 of any lengths; its minimum stays the same."""
    edges: tuple[float, ...]
    """Least lengths of all classes but the first, ascending."""
    typical: tuple[float, ...]
    """The median length of each class; of a ranking, the lengths at RANKS."""
    scores: tuple[float, ...] = ()
    """The outputs at RANKS of a ranking, which stand for the lengths of `typical`; its targets before it is trained."""

    @classmethod
    def of(cls, task: Task, lengths: NDArray[np.float32]) -> Scale:
        """The scale of lengths in tokens (n,). Raises ValueError where they are too similar for the task's classes."""
        edges = quantile_edges(lengths, task.cuts)
        classes = class_of(lengths, edges)
        if not task.wants_values:
            _require_all(classes, task.classes)
        typical = tuple(float(np.median(lengths[classes == label])) for label in np.unique(classes))
        if task is Task.RANKING:
            typical = at_ranks(lengths)
        centre = float(np.mean(lengths) if task is Task.REGRESSION_MSE else np.median(lengths))
        spread = float(np.std(lengths)) or 1.0
        scores = tuple((length - centre) / spread for length in typical) if task is Task.RANKING else ()
        return cls(centre, spread, edges, typical, scores)


def at_ranks(values: NDArray[np.float32]) -> tuple[float, ...]:
    """Values (n,) -> those at RANKS, ascending."""
    return tuple(np.quantile(values, RANKS).tolist())


def quantile_edges(lengths: NDArray[np.float32], cuts: tuple[float, ...] = CUTS) -> tuple[float, ...]:
    """Lengths (n,) -> the least lengths of all classes but the first, which these quantiles part."""
    return tuple(float(edge) for edge in np.quantile(lengths, cuts))


def class_of(lengths: NDArray[np.float32], edges: Sequence[float]) -> NDArray[np.intp]:
    """Lengths (n,) -> numbers of their classes (n,); a length that is an edge belongs to the upper class."""
    return np.searchsorted(np.asarray(edges, dtype=np.float32), lengths, side="right").astype(np.intp)


def _require_all(classes: NDArray[np.intp], count: int) -> None:
    found = len(np.unique(classes))
    if found < count:
        raise ValueError(
            f"the lengths are too much alike: only {found} of {count} quantile classes have any; "
            "train with more varied rows, or choose a regression task"
        )


def targets(task: Task, scale: Scale, lengths: NDArray[np.float32]) -> Tensor:
    """Lengths (n,) in tokens -> what the outputs shall be: numbers of classes (n,), or values (n,)."""
    if task.wants_values:
        return torch.as_tensor((lengths - scale.centre) / scale.spread, dtype=torch.float32)
    numbers = torch.as_tensor(class_of(lengths, scale.edges))
    return numbers if task.scores_classes else numbers.float()


def loss(task: Task, outputs: Tensor, wanted: Tensor) -> Tensor:
    """Mean loss of outputs (n, outputs) against targets (n,)."""
    if task.scores_classes:
        return functional.cross_entropy(outputs, wanted)
    values = outputs.squeeze(1)
    if task is Task.RANKING:
        return _list_mle(values, wanted)
    if task in (Task.REGRESSION_L1, Task.ORDINAL_L1):
        return functional.l1_loss(values, wanted)
    return functional.mse_loss(values, wanted)


def _list_mle(scores: Tensor, wanted: Tensor) -> Tensor:
    """The mean of -log P over a list (n,): that of what is left, the shortest is drawn first, where the odds of a draw
    are exp(-score). Equal lengths are drawn from one list, in no order."""
    ascending, order = wanted.sort()
    odds = -scores[order]
    left = odds.flip(0).logcumsumexp(0).flip(0)
    return (left[torch.searchsorted(ascending, ascending)] - odds).mean()


def lengths_of(task: Task, scale: Scale, outputs: Tensor) -> NDArray[np.float32]:
    """Outputs (n, outputs) -> predicted lengths in tokens (n,), at least 1. A class stands for its median length."""
    if task.wants_values:
        values = outputs.squeeze(1).double().numpy()
        by_rank = task is Task.RANKING
        values = np.interp(values, scale.scores, scale.typical) if by_rank else values * scale.spread + scale.centre
        lengths: NDArray[np.float32] = np.maximum(values, 1.0).astype(np.float32)
        return lengths
    if task.scores_classes:
        numbers = outputs.argmax(1).numpy()
    else:  # a real value, rounded to the nearest class
        numbers = outputs.squeeze(1).round().clamp(0, task.classes - 1).long().numpy()
    found: NDArray[np.float32] = np.asarray(scale.typical, dtype=np.float32)[numbers]
    return found
