"""The axis of a chart: which values it spans, where its ticks are, and what they say. Knows no pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

TICKS = 5
"""About how many steps an axis has."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`; on a logarithmic one both are above 0."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)


def linear(values: Iterable[float]) -> Scale:
    """A scale that holds zero and all values, and ends at ticks: lengths on it can be compared by eye."""
    low, high = min(0.0, *(known := [0.0, *values])), max(known)
    if low == high:
        high = low + 1.0
    step = _nice((high - low) / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(number * step, 12) for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def logarithmic(values: Iterable[float]) -> Scale:
    """A scale with a tick at every value, all of which are above 0, and some room at both ends."""
    ticks = tuple(sorted(set(values)))
    room = (ticks[-1] / ticks[0]) ** 0.05 if len(ticks) > 1 else 2.0
    return Scale(ticks[0] / room, ticks[-1] * room, ticks, logarithmic=True)


def number(value: float) -> str:
    """A figure as people write it: three or four digits that matter, thousands apart."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _nice(step: float) -> float:
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= step * (1 - 1e-9)), 10 * power)
