"""The figures of an experiment's runs, and the rows of its report: a published figure or claim beside what was
measured, a finding of our own, or what is skipped.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
FIGURES: Mapping[str, list[Any]] = MappingProxyType({name: rest for name, *rest in PUBLISHED["figures"]})
"""Figures of a run: the head of their column, its digits, and how a gain in them is called."""
NEAR = 0.1
"""Share of a published figure by which a measured one may be off and still be called the same."""
NEUTRAL: Mapping[str, float] = MappingProxyType({PERCENT: 0.0, TIMES: 1.0})
"""Gains by which nothing is won, by unit."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as text, and as JSON."""

    what: str
    measured: str
    published: str
    where: str
    document: Json

    @classmethod
    def beside(cls, what: str, measured: Mapping[str, float], low: float, high: float, unit: str, where: str) -> Row:
        """Figures by point of a sweep beside a published range, whose ends are equal where the text has one number; a
        skipped row without figures.

        where   section and figure
        """
        published = span(low, high, unit)
        if not measured:
            return cls.skip(what, "the other strategy has none of it", published, where)
        rounded = {name: round_figure(value) for name, value in measured.items()}
        document: Json = {"what": what, "measured": rounded, "published": [low, high], "unit": unit, "where": where}
        return cls(what, span(min(measured.values()), max(measured.values()), unit), published, where, document)

    @classmethod
    def claim(cls, what: str, holds: bool, measured: Mapping[str, float] | str, where: str, digits: int = 1) -> Row:
        """Something that the text says in words."""
        told = measured if isinstance(measured, str) else chain(measured, digits)
        document: Json = {"what": what, "holds": holds, "measured": told, "where": where}
        return cls(what, f"{'yes' if holds else 'no'}: {told}", "yes", where, document)

    @classmethod
    def rise(cls, what: str, values: Mapping[str, float], where: str, digits: int = 1, *, falls: bool = False) -> Row:
        """The claim that values rise, or fall, in their order."""
        sign = -1 if falls else 1
        return cls.claim(what, rises([sign * one for one in values.values()]), values, where, digits)

    @classmethod
    def find(cls, what: str, measured: Mapping[str, float], unit: str) -> Row:
        """Something that was measured here, by point of a sweep, and that no paper tells."""
        rounded = {name: round_figure(value) for name, value in measured.items()}
        shown = span(min(measured.values()), max(measured.values()), unit)
        return cls(what, shown, "", "", {"what": what, "measured": rounded, "unit": unit})

    @classmethod
    def skip(cls, what: str, why: str, published: str = "", where: str = "") -> Row:
        """Something that could not be measured, and why."""
        return cls(what, f"skipped: {why}", published, where, {"what": what, "skipped": why})

    @property
    def verdict(self) -> str:
        """Whether what is published was measured; nothing for a row that was skipped or that no paper tells.

        As published: some figure lies within NEAR of the published range. The opposite: a gain that is none at any
        point.
        """
        measured, published, holds = (self.document.get(name) for name in ("measured", "published", "holds"))
        if isinstance(measured, dict) and isinstance(published, list):
            low, high = published
            margin, neutral = NEAR * max(abs(low), abs(high)), NEUTRAL.get(str(self.document["unit"]))
            if any(low - margin <= value <= high + margin for value in measured.values()):
                return "as published"
            if neutral is not None and max(measured.values()) <= neutral < low:
                return "the opposite"
            return "less" if min(measured.values()) < low else "more"
        return "" if holds is None else "holds" if holds else "does not hold"


@dataclass(frozen=True, slots=True)
class Runs:
    """The figures of an experiment's strategies at its points."""

    lines: Sequence[Line]

    def read(self, strategy: str, figure: str) -> dict[str, float]:
        """A figure of a strategy by the labels of the points."""
        return {line.point.label: line.figures[figure] for line in self.lines if line.strategy == strategy}

    def compare(self, new: str, old: str, figure: str) -> dict[str, float]:
        """A figure of one strategy by that of another, by point; not where the other has none."""
        theirs = self.read(old, figure)
        return {point: own / theirs[point] for point, own in self.read(new, figure).items() if theirs[point] > 0}

    def gain(self, new: str, old: str, figure: str) -> dict[str, float]:
        """The gain of one strategy over another in percent, by point: less response time, more of everything else."""
        less, ratios = figure in ("mean", "tail"), self.compare(new, old, figure)
        return {point: (1 - ratio if less else ratio - 1) * 100 for point, ratio in ratios.items()}

    def gain_rows(self, published: Sequence[Any]) -> list[Row]:
        """The rows of published gains (new, old, figure, lowest, highest, where) whose two strategies have run, also
        over a baseline's form that pads."""
        ran = {line.strategy for line in self.lines}
        return [
            Row.beside(_title(new, baseline, figure), self.gain(new, baseline, figure), low, high, PERCENT, where)
            for new, old, figure, low, high, where in published
            for baseline in (old, f"{old}-padded")
            if {new, baseline} <= ran
        ]

    def found_gains(self, new: str, old: str, figures: Sequence[str]) -> list[Row]:
        """The rows of gains that the text does not tell of these two strategies."""
        return [Row.find(_title(new, old, figure), self.gain(new, old, figure), PERCENT) for figure in figures]


def _title(new: str, old: str, figure: str) -> str:
    return f"{new} over {old}: {FIGURES[figure][2]}"


def rises(values: Sequence[float]) -> bool:
    """Whether each value is more than the one before."""
    return all(one < other for one, other in pairwise(values))


def round_figure(value: float) -> float:
    """Round a figure to DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def span(low: float, high: float, unit: str) -> str:
    """A range for the eye, or one number where both ends look the same."""
    digits = {TIMES: 2, "": 2}.get(unit, 1)
    least, most = f"{low:.{digits}f}", f"{high:.{digits}f}"
    text = least if least == most else f"{least} to {most}"
    return f"{text}×" if unit == TIMES else f"{text} {unit}".rstrip()


def chain(values: Mapping[str, float], digits: int = 1) -> str:
    """Names and values in a line."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
