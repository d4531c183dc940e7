"""Tasks of the proxy (SSJF, Table 2), and ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# between classes (`preprocess_dataset.py`)
CUTS = (0.25, 0.5, 0.75, 0.99)


RANKS = tuple(np.linspace(0.0, 1.0, 33).tolist())  # quantiles of a ranking


class ProxyTask(StrEnum):
    """(SSJF, 3.1)."""

    REGRESSION_L1 = "regression-l1"  # the paper's choice
    REGRESSION_MSE = "regression-mse"
    CLASSIFICATION = "classification"  # cross-entropy
    ORDINAL_L1 = "ordinal-l1"  # class number
    ORDINAL_MSE = "ordinal-mse"  # class number
    BINARY = "binary"  # of the median, cross-entropy
    RANKING = "ranking"  # ListMLE (vLLM-LTR, NeurIPS 2024, 2408.15792)

    @property
    def classes(self) -> int:
        return len(self.cuts) + 1

    @property
    def cuts(self) -> tuple[float, ...]:
        return {ProxyTask.BINARY: (0.5,), ProxyTask.RANKING: ()}.get(self, CUTS)

    @property
    def scores_classes(self) -> bool:
        return self in (ProxyTask.CLASSIFICATION, ProxyTask.BINARY)

    @property
    def wants_values(self) -> bool:
        return self in (ProxyTask.REGRESSION_L1, ProxyTask.REGRESSION_MSE, ProxyTask.RANKING)


@dataclass(frozen=True, slots=True)
class Scale:
    centre: float  # tokens at 0: median for L1, mean for MSE
    spread: float  # tokens at 1
    edges: tuple[float, ...]  # of all classes but the first
    typical: tuple[float, ...]  # median by class; a ranking's at RANKS
    scores: tuple[float, ...] = ()  # a ranking's at RANKS

    @classmethod
    def of(cls, task: ProxyTask, lengths: NDArray[np.float32]) -> Scale:
        """Of (n,). Raises ValueError for equal classes."""
        edges = quantile_edges(lengths, task.cuts)
        classes = class_of(lengths, edges)
        found = len(np.unique(classes))
        if not task.wants_values and found < task.classes:
            raise ValueError(
                f"the lengths are too much alike: only {found} of {task.classes} quantile classes have any; "
                "train with more varied rows, or choose a regression task"
            )
        typical = tuple(float(np.median(lengths[classes == label])) for label in np.unique(classes))
        if task is ProxyTask.RANKING:
            typical = at_ranks(lengths)
        centre = float(np.mean(lengths) if task is ProxyTask.REGRESSION_MSE else np.median(lengths))
        spread = float(np.std(lengths)) or 1.0
        scores = tuple((length - centre) / spread for length in typical) if task is ProxyTask.RANKING else ()
        return cls(centre, spread, edges, typical, scores)


def at_ranks(values: NDArray[np.float32]) -> tuple[float, ...]:
    """(n,) -> at RANKS, ascending."""
    return tuple(np.quantile(values, RANKS).tolist())


def quantile_edges(lengths: NDArray[np.float32], cuts: tuple[float, ...] = CUTS) -> tuple[float, ...]:
    """(n,) -> edges of all classes but the first."""
    return tuple(float(edge) for edge in np.quantile(lengths, cuts))


def class_of(lengths: NDArray[np.float32], edges: Sequence[float]) -> NDArray[np.intp]:
    """(n,) -> (n,); an edge is in the upper class."""
    return np.digitize(lengths, np.asarray(edges, dtype=np.float32))


def targets(task: ProxyTask, scale: Scale, lengths: NDArray[np.float32]) -> Tensor:
    if task.wants_values:
        return torch.as_tensor((lengths - scale.centre) / scale.spread, dtype=torch.float32)
    numbers = torch.as_tensor(class_of(lengths, scale.edges))
    return numbers if task.scores_classes else numbers.float()


def loss(task: ProxyTask, outputs: Tensor, wanted: Tensor) -> Tensor:
    """(n, outputs), (n,) -> mean."""
    if task.scores_classes:
        return functional.cross_entropy(outputs, wanted)
    values = outputs.squeeze(1)
    if task is ProxyTask.RANKING:  # ListMLE: -log P of drawing (n,) shortest first, odds exp(-score)
        ascending, order = wanted.sort()
        odds = -values[order]
        left = odds.flip(0).logcumsumexp(0).flip(0)
        return (left[torch.searchsorted(ascending, ascending)] - odds).mean()
    if task in (ProxyTask.REGRESSION_L1, ProxyTask.ORDINAL_L1):
        return functional.l1_loss(values, wanted)
    return functional.mse_loss(values, wanted)


def lengths_of(task: ProxyTask, scale: Scale, outputs: Tensor) -> NDArray[np.float32]:
    """(n, outputs) -> tokens (n,), at least 1."""
    if task.wants_values:
        values = outputs.squeeze(1).double().numpy()
        by_rank = task is ProxyTask.RANKING
        values = np.interp(values, scale.scores, scale.typical) if by_rank else values * scale.spread + scale.centre
        return np.asarray(np.maximum(values, 1.0), dtype=np.float32)
    if task.scores_classes:
        numbers = outputs.argmax(1).numpy()
    else:  # nearest class
        numbers = outputs.squeeze(1).round().clamp(0, task.classes - 1).long().numpy()
    return np.asarray(np.take(scale.typical, numbers), dtype=np.float32)
