"""Figures of a grid: by how much each contender's differ from those of first come, first served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadgen.experiments.grid.cells import Cell
from loadgen.experiments.grid.contenders import BASE

FIGURES = ("mean", "p99", "longest", "throughput")

Figures = Mapping[str, float]
Results = Mapping[Cell, Mapping[str, Figures]]
"""Cell -> contender -> figures."""

MEAN_LIMIT, P99_LIMIT = 1.05, 1.10
"""The ratios to BASE that a rule must not exceed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Ratios of one contender to BASE over some cells."""

    contender: str
    mean: float
    """Geometric mean of mean JCT; likewise the next two."""
    p99: float
    longest: float
    worst_mean: float
    worst_p99: float
    worst_longest: float
    least_throughput: float
    beyond: int
    """Cells in which it exceeds a limit."""


def compare(results: Results, contenders: Sequence[str], cells: Sequence[Cell]) -> list[Difference]:
    """The differences over these cells; empty where there are none."""
    return [_difference(name, [results[cell] for cell in cells]) for name in contenders] if cells else []


def _difference(name: str, cells: Sequence[Mapping[str, Figures]]) -> Difference:
    ratios = {figure: [one[name][figure] / one[BASE][figure] for one in cells] for figure in FIGURES}
    typical = {figure: math.exp(fmean(map(math.log, found))) for figure, found in ratios.items()}
    pairs = zip(ratios["mean"], ratios["p99"], strict=True)
    return Difference(
        contender=name,
        mean=typical["mean"],
        p99=typical["p99"],
        longest=typical["longest"],
        worst_mean=max(ratios["mean"]),
        worst_p99=max(ratios["p99"]),
        worst_longest=max(ratios["longest"]),
        least_throughput=min(ratios["throughput"]),
        beyond=sum(mean > MEAN_LIMIT or p99 > P99_LIMIT for mean, p99 in pairs),
    )
