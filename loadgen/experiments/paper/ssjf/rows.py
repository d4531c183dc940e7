"""Rows of SSJF: figures and claims of its section 4 beside those of runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import truediv

from loadgen.experiments.paper.gains import compare, gain, read_published
from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.row import PERCENT, TIMES, Published, Row, chain, claim

MODES = ("none", "dynamic", "continuous")


def size_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of Figure 8, which the text tells in words."""
    where = "4.2, Fig. 8"
    jct = gain(lines, "ssjf-continuous", "ssjf-dynamic", "mean")
    below = all(value >= 0 for value in jct.values())
    rows = [claim("continuous batching has less JCT than dynamic", below, f"{chain(jct)} % less", where)]
    for mode in MODES[1:]:
        gains = gain(lines, f"ssjf-{mode}", f"fcfs-{mode}", "mean")
        values = list(gains.values())
        shrink = f"ssjf-{mode}: JCT gains shrink with the batch size"
        rows.append(claim(shrink, values[-1] < values[0], f"{chain(gains)} %", where))
    return rows


def formulation_rows(lines: Sequence[Line], throughput: str) -> list[Row]:
    """Rows of Table 2's last two lines, each in all modes, since the text does not say in which one it is."""
    rows = []
    for name, right, percent, times in read_published("ssjf", "table-2"):
        own = [line for line in lines if line.point == name]
        jct, served = {}, {}
        for mode in MODES:
            jct[mode] = gain(own, f"ssjf-{mode}", f"fcfs-{mode}", "mean")[name]
            for times_served in compare(own, f"ssjf-{mode}", f"fcfs-{mode}", throughput, truediv).values():
                served[mode] = times_served
        said = f"{name}, {right:.1%} right"
        rows.append(Published(percent, percent, PERCENT, "4.3, Table 2").beside(f"{said}: mean JCT less by", jct))
        rows.append(Published(times, times, TIMES, "4.3, Table 2").beside(f"{said}: throughput", served))
    return rows
