"""How far apart is too far."""

from __future__ import annotations

import pytest
from rich.console import Console

from loadgen.validation.verdict import Quantity, Verdict, table, verdict_json


@pytest.mark.parametrize(("simulated", "holds"), [(8.5, True), (11.5, True), (8.4, False), (11.6, False)])
def test_fifteen_percent_of_what_was_measured(simulated: float, holds: bool) -> None:
    one = Quantity(real=10.0, simulated=simulated)
    assert one.holds is holds
    assert Verdict("vs", one, Quantity(1.0, 1.0)).holds is holds
    assert Verdict("vs", Quantity(1.0, 1.0), one).holds is holds


def test_it_is_told_in_figures() -> None:
    one = Verdict("vs", Quantity(10.0, 12.0), Quantity(2.0, 1.9))
    assert verdict_json(one) == {
        "strategy": "vs",
        "holds": False,
        "mean_jct": {"real": 10.0, "simulated": 12.0, "deviation": pytest.approx(0.2)},
        "request_throughput": {"real": 2.0, "simulated": 1.9, "deviation": pytest.approx(-0.05)},
    }
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table([one]))
    assert "+20.0%" in shown.get() and "-5.0%" in shown.get() and "no" in shown.get()
