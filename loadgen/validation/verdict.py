"""How far a simulation is from the real engine. Knows neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from loadgen.result import Json

BOUND = 0.15
"""Within this share of what was measured, the simulator is trusted."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """The same thing measured on the engine and simulated."""

    real: float
    simulated: float

    @property
    def deviation(self) -> float:
        """Of the simulated from the real, as a share of the real."""
        return self.simulated / self.real - 1

    @property
    def holds(self) -> bool:
        return abs(self.simulated - self.real) <= BOUND * self.real


@dataclass(frozen=True, slots=True)
class Verdict:
    """One strategy's. JCT in seconds, throughput in requests a second."""

    strategy: str
    mean_jct: Quantity
    throughput: Quantity

    @property
    def holds(self) -> bool:
        return self.mean_jct.holds and self.throughput.holds


def table(verdicts: Sequence[Verdict]) -> Table:
    """A line a strategy and quantity."""
    shown = Table(title="The simulator beside the engine", title_style="bold")
    for head in ("strategy", ""):
        shown.add_column(head, no_wrap=True)
    for head in ("engine", "simulated", "deviation", f"within {BOUND:.0%}"):
        shown.add_column(head, justify="right")
    for one in verdicts:
        _add(shown, one.strategy, "mean JCT (s)", one.mean_jct)
        _add(shown, "", "throughput (req/s)", one.throughput)
    return shown


def _add(shown: Table, strategy: str, name: str, one: Quantity) -> None:
    shown.add_row(
        strategy,
        name,
        f"{one.real:.3f}",
        f"{one.simulated:.3f}",
        f"{one.deviation:+.1%}",
        "yes" if one.holds else "no",
    )


def verdict_json(one: Verdict) -> Json:
    return {
        "strategy": one.strategy,
        "holds": one.holds,
        **{
            name: {"real": value.real, "simulated": value.simulated, "deviation": value.deviation}
            for name, value in (("mean_jct", one.mean_jct), ("request_throughput", one.throughput))
        },
    }
