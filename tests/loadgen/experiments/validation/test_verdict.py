"""How far apart is too far."""

from __future__ import annotations

import pytest
from rich.console import Console

from loadgen.experiments.validation.verdict import Quantity, Verdict, table, verdict_json

SAME = Quantity(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("simulated", "holds"), [(8.5, True), (11.5, True), (8.4, False), (11.6, False)])
def test_fifteen_percent_of_what_was_measured_at_the_speed_of_the_run(simulated: float, holds: bool) -> None:
    one = Quantity(real=10.0, profiled=5.0, simulated=simulated)
    assert one.holds is holds
    assert Verdict("vs", 1.0, one, SAME).holds is holds
    assert Verdict("vs", 1.0, SAME, one).holds is holds


def test_it_is_told_in_figures() -> None:
    one = Verdict("vs", 1.25, Quantity(10.0, 8.0, 12.0), Quantity(2.0, 2.0, 1.9))
    assert verdict_json(one) == {
        "strategy": "vs",
        "holds": False,
        "slowdown": 1.25,
        "mean_jct": {
            "real": 10.0,
            "profiled": 8.0,
            "profile_deviation": pytest.approx(-0.2),
            "simulated": 12.0,
            "deviation": pytest.approx(0.2),
        },
        "request_throughput": {
            "real": 2.0,
            "profiled": 2.0,
            "profile_deviation": pytest.approx(0.0),
            "simulated": 1.9,
            "deviation": pytest.approx(-0.05),
        },
    }
    console = Console(width=160)
    with console.capture() as shown:
        console.print(table([one]))
    assert all(part in shown.get() for part in ("-20.0%", "1.25", "+20.0%", "-5.0%", "no"))
