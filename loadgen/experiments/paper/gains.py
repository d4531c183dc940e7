"""One strategy against another, over the points of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.experiments.paper.published import Gains
from loadgen.experiments.paper.row import AnyRow, Row, less, more
from loadgen.experiments.paper.stage import Line


def gain_rows(lines: Sequence[Line], new: str, old: str, gains: Gains) -> list[AnyRow]:
    """Throughput and response times of one strategy against another, at every point that both have."""
    ours, theirs = of(lines, new), of(lines, old)
    if not ours or not theirs:
        return []
    pairs = {point: (line.trial, theirs[point].trial) for point, line in ours.items()}
    what = f"{new} over {old}"
    return [
        Row(
            f"{what}: throughput",
            {point: more(one.throughput, other.throughput) for point, (one, other) in pairs.items()},
            gains.throughput,
        ),
        Row(
            f"{what}: mean response time less by",
            {point: less(one.mean, other.mean) for point, (one, other) in pairs.items()},
            gains.mean,
        ),
        Row(
            f"{what}: 95 % response time less by",
            {point: less(one.tail, other.tail) for point, (one, other) in pairs.items()},
            gains.tail,
        ),
    ]


def of(lines: Sequence[Line], name: str) -> dict[str, Line]:
    return {line.point: line for line in lines if line.strategy == name}
