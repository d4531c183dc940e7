"""Figures of runs, and report rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from loadgen.experiments.paper.trial import TrialLine
from loadgen.result_file import Json
from models.files import read_toml

# by name; columns as in the file
PUBLISHED: Mapping[str, list[Any]] = read_toml(__file__, "published.toml")

PERCENT, TIMES, SECONDS = "%", "x", "s"
DIGITS = 5  # significant, in files
# head, digits, and word for a gain
FIGURES: Mapping[str, list[Any]] = {name: rest for name, *rest in PUBLISHED["figures"]}
NEAR = 0.1  # relative error within which a figure is the published one
NEUTRAL: Mapping[str, float] = {PERCENT: 0.0, TIMES: 1.0}  # gains that count as none, by unit


@dataclass(frozen=True, slots=True)
class ReportRow:
    what: str
    measured: str
    published: str
    where: str
    document: Json

    @classmethod
    def beside(cls, what: str, measured: Mapping[str, float], low: float, high: float, unit: str, where: str) -> Self:
        """Without figures the row is skipped. `where`: section and figure."""
        published = span(low, high, unit)
        if not measured:
            return cls.skip(what, "the other strategy has none of it", published, where)
        rounded = round_figures(measured)
        document: Json = {"what": what, "measured": rounded, "published": [low, high], "unit": unit, "where": where}
        return cls(what, span(min(measured.values()), max(measured.values()), unit), published, where, document)

    @classmethod
    def claim(cls, what: str, holds: bool, measured: Mapping[str, float] | str, where: str, digits: int = 1) -> Self:
        told = measured if isinstance(measured, str) else chain(measured, digits)
        document: Json = {"what": what, "holds": holds, "measured": told, "where": where}
        return cls(what, f"{'yes' if holds else 'no'}: {told}", "yes", where, document)

    @classmethod
    def rise(cls, what: str, values: Mapping[str, float], where: str, digits: int = 1, *, falls: bool = False) -> Self:
        return cls.claim(what, rises([-one if falls else one for one in values.values()]), values, where, digits)

    @classmethod
    def find(cls, what: str, measured: Mapping[str, float], unit: str) -> Self:
        shown = span(min(measured.values()), max(measured.values()), unit)
        return cls(what, shown, "", "", {"what": what, "measured": round_figures(measured), "unit": unit})

    @classmethod
    def skip(cls, what: str, why: str, published: str = "", where: str = "") -> Self:
        return cls(what, f"skipped: {why}", published, where, {"what": what, "skipped": why})

    @property
    def verdict(self) -> str:
        """As published: within NEAR of the range. The opposite: no gain. Empty for findings and skips."""
        measured, published, holds = (self.document.get(name) for name in ("measured", "published", "holds"))
        if isinstance(measured, dict) and isinstance(published, list):
            low, high = published
            margin, neutral = NEAR * max(abs(low), abs(high)), NEUTRAL.get(str(self.document["unit"]))
            if any(low - margin <= value <= high + margin for value in measured.values()):
                return f"as published, within {NEAR:.0%}"
            if neutral is not None and max(measured.values()) <= neutral < low:
                return "the opposite"
            return "less" if min(measured.values()) < low else "more"
        return "" if holds is None else "holds" if holds else "does not hold"


@dataclass(frozen=True, slots=True)
class PaperRuns:
    lines: Sequence[TrialLine]

    def read(self, strategy: str, figure: str) -> dict[str, float]:
        return {line.point.label: line.figures[figure] for line in self.lines if line.strategy == strategy}

    def compare(self, new: str, old: str, figure: str) -> dict[str, float]:
        theirs = self.read(old, figure)
        return {point: own / theirs[point] for point, own in self.read(new, figure).items() if theirs[point] > 0}

    def gain(self, new: str, old: str, figure: str) -> dict[str, float]:
        """Gain in percent: less response time, more of everything else."""
        less, ratios = figure in ("mean", "tail"), self.compare(new, old, figure)
        return {point: (1 - ratio if less else ratio - 1) * 100 for point, ratio in ratios.items()}

    def gain_rows(self, published: Sequence[Any]) -> list[ReportRow]:
        """Published gains (new, old, figure, lowest, highest, where) of strategies that ran, also over padded
        baselines.
        """
        ran = {line.strategy for line in self.lines}
        return [
            ReportRow.beside(_title(new, baseline, figure), self.gain(new, baseline, figure), low, high, PERCENT, where)
            for new, old, figure, low, high, where in published
            for baseline in (old, f"{old}-padded")
            if {new, baseline} <= ran
        ]

    def found_gains(self, new: str, old: str, figures: Sequence[str]) -> list[ReportRow]:
        return [ReportRow.find(_title(new, old, figure), self.gain(new, old, figure), PERCENT) for figure in figures]


def _title(new: str, old: str, figure: str) -> str:
    return f"{new} over {old}: {FIGURES[figure][2]}"


def rises(values: Sequence[float]) -> bool:
    return all(one < other for one, other in pairwise(values))


def round_figure(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def round_figures(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round_figure(value) for name, value in values.items()}


def span(low: float, high: float, unit: str) -> str:
    """One number where both ends look the same."""
    digits = {TIMES: 2, "": 2}.get(unit, 1)
    least, most = f"{low:.{digits}f}", f"{high:.{digits}f}"
    text = least if least == most else f"{least} to {most}"
    return f"{text}×" if unit == TIMES else f"{text} {unit}".rstrip()


def chain(values: Mapping[str, float], digits: int = 1) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
