"""The two completion times that Baton's machines are solved for come out of them."""

from __future__ import annotations

import pytest

from loadgen.experiments.baton.paper import BENCHMARK, TABLE_1, TABLE_2
from loadgen.experiments.paper.baton import table_1, table_2
from loadgen.experiments.paper.load import Pool
from loadgen.experiments.paper.stage import Experiment, Setting, Stage
from scheduler.strategy import STRATEGIES


def seconds(one: Experiment, point: str) -> float:
    [line] = [line for line in one.lines if line.point == point]
    return line.trial.duration


def test_benchmark_takes_as_long_as_published() -> None:
    stage = Stage(Pool((), ""), Setting(), 1, strategies={"benchmark": STRATEGIES["benchmark"]})
    assert seconds(table_1(stage), "8 rows") == pytest.approx(TABLE_1[8][BENCHMARK], rel=1e-3)
    assert seconds(table_2(stage), "2 rows") == pytest.approx(TABLE_2[2][BENCHMARK], rel=1e-3)
