"""The distance of a simulation from the real engine, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from rich.table import Table

from loadgen.console import COLUMNS
from loadgen.result_file import Json
from loadgen.simulate.figures import Figures

MEAN_BOUND, P99_BOUND = 0.05, 0.10
"""Within these shares of what was measured, the simulator is trusted."""

LEAST = 1e-3
"""A difference that is not above this is none: batches that return as a whole have a TPOT of nothing."""

QUANTITIES: Mapping[str, float] = MappingProxyType(
    {
        **{f"mean_{name}_ms": MEAN_BOUND for name in ("ttft", "tpot", "jct")},
        **{f"p99_{name}_ms": P99_BOUND for name in ("ttft", "tpot", "jct")},
        "request_throughput": MEAN_BOUND,
    }
)
"""The figures that are compared, and the bounds of their deviations."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure, measured on the engine and simulated."""

    real: float
    profiled: float
    """Simulated with the machine as fast as its profile says."""
    simulated: float
    """Simulated with the machine as fast as it was in this run."""
    bound: float = MEAN_BOUND

    @property
    def deviation(self) -> float:
        """Deviation of the simulated from the real, as a share of the real; 0 where both are next to nothing."""
        return _deviate(self.simulated, self.real)

    @property
    def profile_deviation(self) -> float:
        """Deviation of the figure simulated at the profile's speed, as a share of the real."""
        return _deviate(self.profiled, self.real)

    @property
    def holds(self) -> bool:
        return abs(self.deviation) <= self.bound


def _deviate(simulated: float, real: float) -> float:
    return 0.0 if max(simulated, real) <= LEAST else simulated / real - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one strategy at one load.

    A machine that others use too is not always as fast as when it was profiled, and near saturation a tenth more work
    is half as long again to wait. So the simulator is judged with the speed of the run, told by its own steps.
    """

    strategy: str
    rho: float | None
    """Requests that came, by those that the strategy serves; None where the rate was given."""
    requests: int
    slowdown: float
    """How much longer steps took than the profile says."""
    quantities: Mapping[str, Quantity]

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.quantities.values())


def compare(real: Figures, profiled: Figures, simulated: Figures) -> dict[str, Quantity]:
    """All quantities of a run and of its two simulations."""
    columns = {COLUMNS[key]: bound for key, bound in QUANTITIES.items()}
    return {
        column.axis: Quantity(*(one[column.key] * column.scale for one in (real, profiled, simulated)), bound=bound)
        for column, bound in columns.items()
    }


def table(verdicts: Sequence[Verdict]) -> Table:
    """The table with a line a strategy, load and quantity."""
    shown = Table(
        title="The simulator beside the engine",
        title_style="bold",
        caption="slowdown: seconds of this run's steps, over what the profile says",
    )
    for head in ("strategy", "ρ", ""):
        shown.add_column(head, no_wrap=True)
    heads = ("engine", "by the profile", "deviation", "slowdown", "at that speed", "deviation", "bound", "within")
    for head in heads:
        shown.add_column(head, justify="right")
    for one in verdicts:
        for place, (name, quantity) in enumerate(one.quantities.items()):
            whose = ("", "") if place else (one.strategy, "" if one.rho is None else f"{one.rho:g}")
            shown.add_row(*whose, name, *_cells(quantity, f"{one.slowdown:.2f}"))
    return shown


def _cells(one: Quantity, slowdown: str) -> tuple[str, ...]:
    engine = (f"{one.real:.3f}", f"{one.profiled:.3f}", f"{one.profile_deviation:+.1%}", slowdown)
    verdict = (f"{one.bound:.0%}", "yes" if one.holds else "no")
    return (*engine, f"{one.simulated:.3f}", f"{one.deviation:+.1%}", *verdict)


def verdict_json(one: Verdict) -> Json:
    """A verdict with both figures and how far they are apart."""
    return {
        "strategy": one.strategy,
        "rho": one.rho,
        "requests": one.requests,
        "holds": one.holds,
        "slowdown": one.slowdown,
        "quantities": {
            name: asdict(value) | {"profile_deviation": value.profile_deviation, "deviation": value.deviation}
            for name, value in one.quantities.items()
        },
    }
