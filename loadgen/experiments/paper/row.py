"""Rows of a report: a published figure or claim beside what was measured, a finding of our own, or what is skipped."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import truediv
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.experiments.paper.trial import Line
from loadgen.result_file import Json

PUBLISHED: Mapping[str, list[Any]] = MappingProxyType(
    tomllib.loads(Path(__file__).with_name("published.toml").read_text("utf-8"))
)
"""Tables of rows by name; the file says what stands in each place of a row."""


PERCENT, TIMES, SECONDS = "%", "x", "s"
DIGITS = 5  # significant digits of figures in a file
TITLES: Mapping[str, str] = {
    "throughput": "throughput",
    "mean": "mean response time less by",
    "tail": "95 % response time less by",
    "valid_tokens": "valid tokens a second",
    "total_tokens": "all tokens a second",
    "batch_size": "batch size",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row as text, and as JSON."""

    what: str
    measured: str
    published: str
    where: str
    document: Json


def beside(what: str, measured: Mapping[str, float], low: float, high: float, unit: str, where: str) -> Row:
    """The row of figures by point of a sweep beside a published range, whose ends are equal where the text has one
    number; a skipped one without figures.

    where   section and figure
    """
    published = span(low, high, unit)
    if not measured:
        return skip(what, "the other strategy has none of it", published, where)
    rounded = {name: round_figure(value) for name, value in measured.items()}
    document: Json = {"what": what, "measured": rounded, "published": [low, high], "unit": unit, "where": where}
    return Row(what, span(min(measured.values()), max(measured.values()), unit), published, where, document)


def gain_rows(lines: Sequence[Line], published: Sequence[Any]) -> list[Row]:
    """The rows of published gains (new, old, figure, lowest, highest, where) whose two strategies have run, also over
    a baseline's form that pads."""
    ran = {line.strategy for line in lines}
    return [
        beside(_title(new, baseline, figure), gain(lines, new, baseline, figure), low, high, PERCENT, where)
        for new, old, figure, low, high, where in published
        for baseline in (old, f"{old}-padded")
        if {new, baseline} <= ran
    ]


def found_gains(lines: Sequence[Line], new: str, old: str, figures: Sequence[str]) -> list[Row]:
    """The rows of gains that the text does not tell of these two strategies."""
    return [find(_title(new, old, figure), gain(lines, new, old, figure), PERCENT) for figure in figures]


def _title(new: str, old: str, figure: str) -> str:
    return f"{new} over {old}: {TITLES[figure]}"


def gain(lines: Sequence[Line], new: str, old: str, figure: str) -> dict[str, float]:
    """The gain of one strategy over another in percent, by point: less response time, more of everything else."""
    return compare(lines, new, old, figure, change(figure))


def compare(
    lines: Sequence[Line], new: str, old: str, figure: str, how: Callable[[float, float], float] = truediv
) -> dict[str, float]:
    """A figure of one strategy compared with that of another, by point; not where the other has none."""
    theirs = read(lines, old, figure)
    return {point: how(own, theirs[point]) for point, own in read(lines, new, figure).items() if theirs[point] > 0}


def read(lines: Sequence[Line], strategy: str, figure: str) -> dict[str, float]:
    """A figure of a strategy's runs by the labels of their points."""
    return {line.point.label: line.figures[figure] for line in lines if line.strategy == strategy}


def round_figure(value: float) -> float:
    """Round a figure to DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def claim(what: str, holds: bool, measured: Mapping[str, float] | str, where: str, digits: int = 1) -> Row:
    """The row of something that the text says in words."""
    told = measured if isinstance(measured, str) else chain(measured, digits)
    document: Json = {"what": what, "holds": holds, "measured": told, "where": where}
    return Row(what, f"{'yes' if holds else 'no'}: {told}", "yes", where, document)


def claim_rise(what: str, values: Mapping[str, float], where: str, digits: int = 1, *, falls: bool = False) -> Row:
    """The row of the claim that values rise, or fall, in their order."""
    sign = -1 if falls else 1
    return claim(what, rises([sign * one for one in values.values()]), values, where, digits)


def find(what: str, measured: Mapping[str, float], unit: str) -> Row:
    """The row of something that was measured here, by point of a sweep, and that no paper tells."""
    rounded = {name: round_figure(value) for name, value in measured.items()}
    shown = span(min(measured.values()), max(measured.values()), unit)
    return Row(what, shown, "", "", {"what": what, "measured": rounded, "unit": unit})


def skip(what: str, why: str, published: str = "", where: str = "") -> Row:
    """The row of something that could not be measured, and why."""
    return Row(what, f"skipped: {why}", published, where, {"what": what, "skipped": why})


def span(low: float, high: float, unit: str) -> str:
    """A range for the eye, or one number where both ends look the same."""
    digits = {TIMES: 2, "": 2}.get(unit, 1)
    least, most = f"{low:.{digits}f}", f"{high:.{digits}f}"
    text = least if least == most else f"{least} to {most}"
    return f"{text}×" if unit == TIMES else f"{text} {unit}".rstrip()


def change(figure: str) -> Callable[[float, float], float]:
    """By how many percent a new figure is less than an old one, for response times, or more, for all others."""
    return lambda new, old: ((1 - new / old) if figure in ("mean", "tail") else (new / old - 1)) * 100


def rises(values: Sequence[float]) -> bool:
    """Whether each value is more than the one before."""
    return all(one < other for one, other in pairwise(values))


def chain(values: Mapping[str, float], digits: int = 1) -> str:
    """Names and values in a line."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
