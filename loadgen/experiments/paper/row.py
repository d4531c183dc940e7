"""Rows of a report: a published figure or claim beside what was measured, a finding of our own, or what is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.experiments.paper.published import PERCENT, TIMES, Published
from loadgen.result_file import Json


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure and what was measured of it, by point of a sweep."""

    what: str
    measured: Mapping[str, float]
    """Point -> value in the published unit."""
    published: Published

    @property
    def measured_text(self) -> str:
        return span(min(self.measured.values()), max(self.measured.values()), self.published.unit)

    @property
    def published_text(self) -> str:
        return span(self.published.low, self.published.high, self.published.unit)

    @property
    def where(self) -> str:
        return self.published.where

    def json(self) -> Json:
        said = self.published
        return {
            "what": self.what,
            "measured": dict(self.measured),
            "published": [said.low, said.high],
            "unit": said.unit,
            "where": said.where,
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the text says in words."""

    what: str
    holds: bool
    measured: str
    where: str

    @property
    def measured_text(self) -> str:
        return f"{'yes' if self.holds else 'no'}: {self.measured}"

    @property
    def published_text(self) -> str:
        return "yes"

    def json(self) -> Json:
        return {"what": self.what, "holds": self.holds, "measured": self.measured, "where": self.where}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was measured here and that no paper tells."""

    what: str
    value: float
    unit: str

    @property
    def measured_text(self) -> str:
        return span(self.value, self.value, self.unit)

    @property
    def published_text(self) -> str:
        return ""

    @property
    def where(self) -> str:
        return ""

    def json(self) -> Json:
        return {"what": self.what, "measured": self.value, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be measured, and why."""

    what: str
    why: str
    published: Published | None = None

    @property
    def measured_text(self) -> str:
        return f"skipped: {self.why}"

    @property
    def published_text(self) -> str:
        return "" if self.published is None else span(self.published.low, self.published.high, self.published.unit)

    @property
    def where(self) -> str:
        return "" if self.published is None else self.published.where

    def json(self) -> Json:
        return {"what": self.what, "skipped": self.why}


AnyRow = Row | Claim | Finding | Skipped


def span(low: float, high: float, unit: str) -> str:
    """A range for the eye, or one number where both ends look the same."""
    digits = 2 if unit == TIMES else 1
    least, most = f"{low:.{digits}f}", f"{high:.{digits}f}"
    text = least if least == most else f"{least} to {most}"
    return f"{text} {unit}" if unit == PERCENT else f"{text}{'×' if unit == TIMES else f' {unit}'}"


def more(new: float, old: float) -> float:
    """By how many percent `new` is more than `old`, which is above 0."""
    return (new / old - 1) * 100


def less(new: float, old: float) -> float:
    """By how many percent `new` is less than `old`, which is above 0."""
    return (1 - new / old) * 100


def rising(values: Sequence[float]) -> bool:
    return all(one < other for one, other in zip(values, values[1:], strict=False))


def chain(values: Mapping[str, float], digits: int = 1) -> str:
    """Names and values in a line."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
