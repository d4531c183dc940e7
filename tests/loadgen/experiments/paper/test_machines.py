"""The two completion times that Baton's machines are solved for come out of them."""

from __future__ import annotations

import pytest

from loadgen.experiments.baton.paper import BENCHMARK, TARGETS
from loadgen.experiments.paper.baton.tables import EXPERIMENTS
from loadgen.experiments.paper.load import Pool
from loadgen.experiments.paper.options import Experiments
from loadgen.experiments.paper.stage import Stage


def seconds(table: str, point: str) -> float:
    """The duration of Benchmark's run."""
    stage = Stage(Pool((), ""), Experiments(), 1)
    [run] = [one for one in EXPERIMENTS[table](stage).runs if (one.strategy, one.point) == ("benchmark", point)]
    return stage.play(run).duration


def test_benchmark_takes_as_long_as_published() -> None:
    assert seconds("table-1", "8 rows") == pytest.approx(TARGETS[1].seconds[8][BENCHMARK], rel=1e-3)
    assert seconds("table-2", "2 rows") == pytest.approx(TARGETS[2].seconds[2][BENCHMARK], rel=1e-3)
