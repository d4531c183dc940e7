from __future__ import annotations

import io

import pytest
from rich.console import Console

from engine.messages import Tally
from loadgen.simulate.figures import figures
from loadgen.simulate.report import BRIEF, SIDE_BY_SIDE, table
from loadgen.simulate.simulation import Served, Simulation, WorkerRecord

DONE = Simulation(
    (Served(0.0, 1.0, 2.0, 11.25, 5, 7, 1, None),),
    (WorkerRecord(11.25, 1.0, 9.0, 9.0, Tally(prompt=5, generated=7)),),
)


def printed(strategies: int) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(table({f"strategy-{n}": figures(DONE) for n in range(strategies)}))
    return out.getvalue()


@pytest.mark.parametrize(("strategies", "is_by_lines"), [(1, False), (SIDE_BY_SIDE, False), (SIDE_BY_SIDE + 1, True)])
def test_many_strategies_have_a_line_each(strategies: int, is_by_lines: bool) -> None:
    lines = printed(strategies).splitlines()
    assert any("strategy-0" in line and "11.25" in line for line in lines) == is_by_lines
    assert any("Mean JCT (s)" in line and "11.25" in line for line in lines) != is_by_lines


def test_each_brief_head_stands_over_its_own_figure() -> None:
    lines = printed(SIDE_BY_SIDE + 1).splitlines()
    heads = next(line for line in lines if "mean JCT s" in line).strip("┃").split("┃")
    cells = next(line for line in lines if "strategy-0" in line).strip("│").split("│")
    told = dict(zip([head.strip() for head in heads], [cell.strip() for cell in cells], strict=True))
    assert set(BRIEF.values()) < set(told)
    assert (told["done"], told["mean JCT s"], told["mean TTFT s"], told["slices"]) == ("1", "11.25", "2.00", "1.00")
