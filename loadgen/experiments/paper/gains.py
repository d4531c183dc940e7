"""Figures of one strategy against those of another, over the points of a sweep, beside the published ones."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from operator import truediv
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.row import PERCENT, TIMES, Published, Row, less, more
from loadgen.experiments.paper.trial import Trial

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "throughput": "throughput",
        "mean": "mean response time less by",
        "tail": "95 % response time less by",
        "valid_tokens": "valid tokens a second",
        "total_tokens": "all tokens a second",
        "batch_size": "batch size",
    }
)
"""Names of the figures in which strategies are compared."""


def read_published(kind: str, table: str) -> list[Any]:
    """A table of published.toml."""
    rows: list[Any] = tomllib.loads(Path(__file__).with_name("published.toml").read_text("utf-8"))[kind][table]
    return rows


def gain_rows(lines: Sequence[Line], table: str) -> list[Row]:
    """The rows of a table of published gains whose two strategies have run, also over a baseline's form that pads."""
    ran = {line.strategy for line in lines}
    return [
        Published(low, high, PERCENT, where).beside(
            f"{new} over {baseline}: {TITLES[figure]}", gain(lines, new, baseline, figure)
        )
        for new, old, figure, low, high, where in read_published("gains", table)
        for baseline in (old, f"{old}-padded")
        if {new, baseline} <= ran
    ]


def sjf_rows(lines: Sequence[Line], table: str, throughput: str) -> list[Row]:
    """Short jobs first against FCFS in the same mode; `throughput` is the figure that stands for the text's."""
    rows = []
    for name, (low, high), where, (least, most), times_where in read_published("short-jobs-first", table):
        fcfs = f"fcfs-{name.rpartition('-')[2]}"
        if not by_point(lines, name):
            continue
        said, served = (
            Published(low, high, PERCENT, f"4.2, {where}"),
            Published(least, most, TIMES, f"4.2, {times_where}"),
        )
        rows.append(said.beside(f"{name}: mean JCT less by", gain(lines, name, fcfs, "mean")))
        rows.append(served.beside(f"{name}: throughput", compare(lines, name, fcfs, throughput, truediv)))
    return rows


def gain(lines: Sequence[Line], new: str, old: str, figure: str) -> dict[str, float]:
    """The gain of one strategy over another in percent, by point: less response time, more of everything else."""
    return compare(lines, new, old, figure, less if figure in ("mean", "tail") else more)


def compare(
    lines: Sequence[Line], new: str, old: str, figure: str, how: Callable[[float, float], float]
) -> dict[str, float]:
    """A figure of one strategy compared with that of another, by point; not where the other has none."""
    theirs = {point: getattr(trial, figure) for point, trial in by_point(lines, old).items()}
    return {
        point: how(getattr(trial, figure), theirs[point])
        for point, trial in by_point(lines, new).items()
        if theirs[point] > 0
    }


def by_point(lines: Sequence[Line], name: str) -> dict[str, Trial]:
    """The trials of a strategy."""
    return {line.point: line.trial for line in lines if line.strategy == name}
