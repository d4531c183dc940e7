"""One strategy against another, over the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.published import Gains
from loadgen.experiments.paper.row import AnyRow, Row, less, more
from loadgen.experiments.paper.trial import Trial


def gain_rows(lines: Sequence[Line], new: str, old: str, gains: Gains) -> list[AnyRow]:
    """Throughput and response times of one strategy against another."""
    what = f"{new} over {old}"
    return [
        Row(f"{what}: throughput", increase(lines, new, old, "throughput"), gains.throughput),
        Row(f"{what}: mean response time less by", decrease(lines, new, old, "mean"), gains.mean),
        Row(f"{what}: 95 % response time less by", decrease(lines, new, old, "tail"), gains.tail),
    ]


def increase(lines: Sequence[Line], new: str, old: str, figure: str) -> dict[str, float]:
    """By how many percent a figure of one strategy is more than that of another, by point."""
    return compare(lines, new, old, figure, more)


def decrease(lines: Sequence[Line], new: str, old: str, figure: str) -> dict[str, float]:
    """By how many percent a figure of one strategy is less than that of another, by point."""
    return compare(lines, new, old, figure, less)


def compare(
    lines: Sequence[Line], new: str, old: str, figure: str, how: Callable[[float, float], float]
) -> dict[str, float]:
    """A figure of one strategy compared with that of another, by point."""
    theirs = by_point(lines, old)
    return {
        point: how(getattr(trial, figure), getattr(theirs[point], figure))
        for point, trial in by_point(lines, new).items()
    }


def by_point(lines: Sequence[Line], name: str) -> dict[str, Trial]:
    """The trials of a strategy."""
    return {line.point: line.trial for line in lines if line.strategy == name}
