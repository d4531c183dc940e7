"""The distance of a simulation from the real engine, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from loadgen.result_file import Json

BOUND = 0.15
"""Within this share of what was measured, the simulator is trusted."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure, measured on the engine and simulated."""

    real: float
    profiled: float
    """Simulated with the machine as fast as its profile says."""
    simulated: float
    """Simulated with the machine as fast as it was in this run."""

    @property
    def deviation(self) -> float:
        """Deviation of the simulated from the real, as a share of the real."""
        return self.simulated / self.real - 1

    @property
    def profile_deviation(self) -> float:
        """Deviation of the figure simulated at the profile's speed, as a share of the real."""
        return self.profiled / self.real - 1

    @property
    def holds(self) -> bool:
        return abs(self.simulated - self.real) <= BOUND * self.real


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one strategy. JCT in seconds, throughput in requests a second.

    A machine that others use too is not always as fast as when it was profiled, and near saturation a tenth more work
    is half as long again to wait. So the simulator is judged with the speed of the run, one number for the whole of
    it: `slowdown`, how much longer its iterations took than the profile says.
    """

    strategy: str
    slowdown: float
    mean_jct: Quantity
    throughput: Quantity

    @property
    def holds(self) -> bool:
        return self.mean_jct.holds and self.throughput.holds


def table(verdicts: Sequence[Verdict]) -> Table:
    """The table with a line a strategy and quantity."""
    shown = Table(
        title="The simulator beside the engine",
        title_style="bold",
        caption="slowdown: seconds of this run's iterations, over what the profile says",
    )
    for head in ("strategy", ""):
        shown.add_column(head, no_wrap=True)
    heads = ("engine", "by the profile", "deviation", "slowdown", "at that speed", "deviation", f"within {BOUND:.0%}")
    for head in heads:
        shown.add_column(head, justify="right")
    for one in verdicts:
        shown.add_row(one.strategy, "mean JCT (s)", *_cells(one.mean_jct, f"{one.slowdown:.2f}"))
        shown.add_row("", "throughput (req/s)", *_cells(one.throughput, ""))
    return shown


def _cells(one: Quantity, slowdown: str) -> tuple[str, ...]:
    engine = (f"{one.real:.3f}", f"{one.profiled:.3f}", f"{one.profile_deviation:+.1%}", slowdown)
    return (*engine, f"{one.simulated:.3f}", f"{one.deviation:+.1%}", "yes" if one.holds else "no")


def verdict_json(one: Verdict) -> Json:
    """A verdict with both figures and how far they are apart."""
    return {
        "strategy": one.strategy,
        "holds": one.holds,
        "slowdown": one.slowdown,
        **{
            name: asdict(value) | {"profile_deviation": value.profile_deviation, "deviation": value.deviation}
            for name, value in (("mean_jct", one.mean_jct), ("request_throughput", one.throughput))
        },
    }
