"""Is a difference between two contestants real? Only if it is beyond what differs between rounds.

Both play the requests of each round, so rounds are compared in pairs: a confidence interval of the mean change over
rounds by Student's t (Biometrika 6, 1908), on the logarithms of the ratios where there are ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadgen.columns import COLUMNS, Better, Column
from loadgen.compare.flags import LEAST_ROUNDS
from loadgen.compare.record import Comparison, Contestant, Point

COMPARED = tuple(
    COLUMNS[key]
    for key in (
        *("request_throughput", "output_throughput"),
        *("mean_jct_ms", "median_jct_ms", "p95_jct_ms", "p99_jct_ms"),
        *("mean_ttft_ms", "median_ttft_ms", "p95_ttft_ms", "p99_ttft_ms"),
        *("mean_normalized_latency_s", "p95_normalized_latency_s", "mean_slowdown", "jain_fairness_index"),
        *("server_mean_batch_rows", "server_pad_tokens", "server_invalid_tokens"),
        *("server_load_imbalance_s", "server_mean_prediction_error_tokens"),
    )
)
"""Columns in the order of the report; those that begin with `server_` are the server's own."""

COUNTS = ("completed", "failed", "rejected")

CONFIDENCE = 0.95
"""The probability with which the bounds of a change enclose it; what is left is that of a verdict between equals."""

Outcome: TypeAlias = Literal["better", "worse", "not shown", "no verdict"]


@dataclass(frozen=True, slots=True)
class Change:
    """How far a contestant is from another, and between which bounds that is with a probability of CONFIDENCE."""

    typical: float
    low: float
    high: float
    relative: bool
    """Whether these are parts of the other's figure, -0.1 for 10 % less; else they are in the quantity's unit."""

    @property
    def shown(self) -> bool:
        """Whether the bounds leave no doubt about the direction."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a contestant next to another, in one quantity under one load."""

    contestant: str
    baseline: str
    point: Point
    quantity: Column
    outcome: Outcome
    text: str


def judge_all(comparison: Comparison) -> list[Verdict]:
    """The verdicts on every pair of contestants once: those with the baseline first."""
    ordered = sorted(comparison.plan.contestants, key=lambda one: one.name != comparison.plan.baseline)
    pairs = ((one, ordered[place + 1 :]) for place, one in enumerate(ordered))
    return [verdict for one, others in pairs for verdict in judge_against(comparison, one, others)]


def judge_against(comparison: Comparison, baseline: Contestant, others: Sequence[Contestant]) -> list[Verdict]:
    """The verdicts on each of the others against the baseline, wherever both have figures."""
    found = []
    for point in comparison.plan.points:
        for quantity in (one for one in COMPARED if one.judged):
            for other in others:
                verdict = _judge_quantity(comparison, other, baseline, point, quantity)
                found += [verdict] if verdict else []
    return found


def _judge_quantity(
    comparison: Comparison, contestant: Contestant, baseline: Contestant, point: Point, quantity: Column
) -> Verdict | None:
    own, base = (comparison.by_round(one, point, quantity.key) for one in (contestant, baseline))
    if not own or not base:
        return None
    pairs = [
        (own[number] * quantity.scale, base[number] * quantity.scale) for number in sorted(own.keys() & base.keys())
    ]
    outcome, text = judge(pairs, quantity.better or "lower")
    lost = sum(_count_lost(comparison, one, point) for one in (contestant, baseline))
    if quantity.only_completed and lost and outcome != "no verdict":
        outcome, text = "no verdict", f"no verdict: {lost:g} requests did not complete, and this counts completed ones"
    return Verdict(contestant.name, baseline.name, point, quantity, outcome, text)


def _count_lost(comparison: Comparison, contestant: Contestant, point: Point) -> float:
    return sum(sum(comparison.values(contestant, point, key)) for key in ("failed", "rejected"))


def judge(pairs: Sequence[tuple[float, float]], better: Better) -> tuple[Outcome, str]:
    """The outcome and its sentence, from the figures of a contestant and of the baseline in each round."""
    if len(pairs) < LEAST_ROUNDS:
        return "no verdict", f"no verdict: {len(pairs)} of at least {LEAST_ROUNDS} rounds"
    change = find_change(pairs)
    if not change.shown:
        return "not shown", f"no difference shown ({_write_bounds(change)})"
    outcome: Outcome = "better" if (change.low > 0) == (better == "higher") else "worse"
    return outcome, f"{outcome}: {_write_change(change.typical, change.relative)} ({_write_bounds(change)})"


def find_change(pairs: Sequence[tuple[float, float]]) -> Change:
    """The mean change over rounds from the second of each pair to the first; two pairs at least."""
    from scipy.special import stdtrit  # slow to import, and only wanted when rounds were played

    relative = all(own > 0 and base > 0 for own, base in pairs)
    changes = [math.log(own / base) if relative else own - base for own, base in pairs]
    mean, error = statistics.fmean(changes), statistics.stdev(changes) / math.sqrt(len(changes))
    reach = float(stdtrit(len(changes) - 1, (1 + CONFIDENCE) / 2)) * error
    typical, low, high = (math.expm1(one) if relative else one for one in (mean, mean - reach, mean + reach))
    return Change(typical, low, high, relative)


def _write_bounds(change: Change) -> str:
    low, high = (_write_change(one, change.relative) for one in (change.low, change.high))
    return low if low == high else f"{low} to {high}"


def _write_change(change: float, relative: bool) -> str:
    """A change in words."""
    direction = "higher" if change > 0 else "lower"
    if change == 0:
        return "equal"
    if not relative:
        return f"{abs(change):.3g} {direction}"
    if change >= 1:
        return f"{change + 1:.2g} times as high"
    return f"{_write_percent(abs(change) * 100)} {direction}"


def _write_percent(value: float) -> str:
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"
