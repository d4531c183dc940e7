"""How far apart is too far."""

from __future__ import annotations

import pytest
from rich.console import Console

from loadgen.experiments.validation.validate import Quantity, Verdict, compare, table, verdict_json
from loadgen.simulate.simulation import Served, measure_latencies


@pytest.mark.parametrize(("simulated", "holds"), [(9.51, True), (10.49, True), (9.4, False), (10.6, False)])
def test_five_percent_of_what_was_measured_at_the_speed_of_the_run(simulated: float, holds: bool) -> None:
    one = Quantity(real=10.0, profiled=5.0, simulated=simulated)
    assert one.holds is holds
    assert Verdict("vs", 1.0, 9, 1.0, {"mean": one, "p99": Quantity(1.0, 1.0, 1.0)}).holds is holds


def test_next_to_nothing_is_nothing() -> None:
    assert Quantity(1e-6, 0.0, 0.0).holds
    assert not Quantity(0.01, 0.0, 0.0).holds


def served(*ends: float) -> list[Served]:
    """Requests of 11 tokens that came at 0 and began their answers after 1 s."""
    return [Served(0.0, 0.5, 1.0, end, 10, 11, 1, None) for end in ends]


def test_all_quantities_are_compared() -> None:
    real, slow = measure_latencies(served(2.0, 4.0)), measure_latencies(served(2.0, 8.0))
    found = compare(real, real, [slow, measure_latencies(served(2.0, 6.0))])
    parts = ("mean TTFT (s)", "mean TPOT (s)", "mean JCT (s)", "p99 TTFT (s)", "p99 TPOT (s)", "p99 JCT (s)")
    assert list(found) == [*parts, "throughput (req/s)"]
    assert found["mean JCT (s)"] == Quantity(3.0, 3.0, 4.5, spread=0.5), "the mean of both simulations"
    assert found["p99 JCT (s)"] == Quantity(4.0, 4.0, 7.0, 0.10, spread=1.0)
    assert found["mean TPOT (s)"].real == pytest.approx((0.1 + 0.3) / 2)
    assert found["mean TTFT (s)"].deviation == 0.0
    assert found["throughput (req/s)"].simulated == pytest.approx((2 / 8 + 2 / 6) / 2)


def test_it_is_told_in_figures() -> None:
    one = Verdict("vs", 0.9, 40, 1.25, {"mean JCT (s)": Quantity(10.0, 8.0, 12.0)})
    assert verdict_json(one) == {
        "strategy": "vs",
        "rho": 0.9,
        "requests": 40,
        "holds": False,
        "slowdown": 1.25,
        "quantities": {
            "mean JCT (s)": {
                "real": 10.0,
                "profiled": 8.0,
                "profile_deviation": pytest.approx(-0.2),
                "simulated": 12.0,
                "bound": 0.05,
                "spread": 0.0,
                "deviation": pytest.approx(0.2),
            }
        },
    }
    console = Console(width=180)
    with console.capture() as shown:
        console.print(table([one]))
    assert all(part in shown.get() for part in ("-20.0%", "1.25", "+20.0%", "0.9", "no"))
