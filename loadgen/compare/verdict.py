"""Is a difference between two contestants real? Only if every round of one lies beyond every round of the other.

That is a rank test with its sharpest possible outcome: were both equal, n rounds of each would be apart by chance in
2 / C(2n, n) of all comparisons (Wilcoxon, "Individual Comparisons by Ranking Methods", 1945).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadgen.compare.plan import LEAST_ROUNDS, Contestant, Point
from loadgen.compare.quantities import QUANTITIES, Better, Quantity
from loadgen.compare.record import Comparison

Outcome: TypeAlias = Literal["better", "worse", "not shown", "no verdict"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a figure in the rounds."""

    values: tuple[float, ...]
    """A value a round, in the order of the rounds; at least one."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def overlaps(self, other: Spread) -> bool:
        """Whether their ranges share a value, be it only an end."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a contestant next to another, in one quantity under one load."""

    contestant: str
    baseline: str
    point: Point
    quantity: Quantity
    outcome: Outcome
    text: str


def find_spread(comparison: Comparison, contestant: Contestant, point: Point, quantity: Quantity) -> Spread | None:
    """A contestant's figures in the quantity's unit; None where there are none."""
    values = comparison.values(contestant, point, quantity.key)
    return Spread(tuple(value * quantity.scale for value in values)) if values else None


def judge_all(comparison: Comparison) -> list[Verdict]:
    """The verdicts on every pair of contestants once: those with the baseline first."""
    plan = comparison.plan
    (base,) = (one for one in plan.contestants if one.name == plan.baseline)
    others = [one for one in plan.contestants if one is not base]
    found = judge_against(comparison, base, others)
    for place, one in enumerate(others):
        found += judge_against(comparison, one, others[place + 1 :])
    return found


def judge_against(comparison: Comparison, baseline: Contestant, others: Sequence[Contestant]) -> list[Verdict]:
    """The verdicts on each of the others against the baseline, wherever both have figures."""
    found = []
    for point in comparison.plan.points:
        for quantity in (one for one in QUANTITIES if one.judged):
            for other in others:
                verdict = _judge_quantity(comparison, other, baseline, point, quantity)
                found += [verdict] if verdict else []
    return found


def compute_chance(rounds: int) -> float:
    """The probability that two equal contestants are apart by chance after so many rounds of each."""
    return 2 / math.comb(2 * rounds, rounds)


def _judge_quantity(
    comparison: Comparison, contestant: Contestant, baseline: Contestant, point: Point, quantity: Quantity
) -> Verdict | None:
    own = find_spread(comparison, contestant, point, quantity)
    base = find_spread(comparison, baseline, point, quantity)
    if own is None or base is None:
        return None
    outcome, text = judge(own, base, quantity.better or "lower")
    lost = sum(_count_lost(comparison, one, point) for one in (contestant, baseline))
    if quantity.only_completed and lost and outcome != "no verdict":
        outcome, text = "no verdict", f"no verdict: {lost:g} requests did not complete, and this counts completed ones"
    return Verdict(contestant.name, baseline.name, point, quantity, outcome, text)


def _count_lost(comparison: Comparison, contestant: Contestant, point: Point) -> float:
    return sum(sum(comparison.values(contestant, point, key)) for key in ("failed", "rejected"))


def judge(own: Spread, base: Spread, better: Better) -> tuple[Outcome, str]:
    """The outcome and its sentence, from the rounds of a contestant and those of the baseline."""
    rounds = min(len(own.values), len(base.values))
    if rounds < LEAST_ROUNDS:
        return "no verdict", f"no verdict: {rounds} of at least {LEAST_ROUNDS} rounds"
    if own.overlaps(base):
        return "not shown", "no difference shown (rounds overlap)"
    higher = own.low > base.high
    outcome: Outcome = "better" if higher == (better == "higher") else "worse"
    nearest = (own.low, base.high) if higher else (own.high, base.low)
    least = _write_change(*nearest)
    return outcome, f"{outcome}: {_write_change(own.median, base.median)}, at least {least} (rounds do not overlap)"


def _write_change(value: float, base: float) -> str:
    """The change from `base` to a value that differs from it, in words."""
    direction = "higher" if value > base else "lower"
    if base == 0 or value / base < 0:
        return f"{abs(value - base):.3g} {direction}"
    if value / base >= 2:
        return f"{value / base:.2g} times as high"
    return f"{_write_percent(abs(value / base - 1) * 100)} {direction}"


def _write_percent(value: float) -> str:
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"
