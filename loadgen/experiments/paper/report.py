"""Experiments for the eye: what was measured in each run, and every row beside what is published."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.experiments.paper.plan import Experiment

HEADS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "requests": ("requests", 0),
        "duration": ("duration s", 1),
        "throughput": ("req/s", 2),
        "answered_meanwhile": ("req/s meanwhile", 2),
        "first_quarter": ("req/s, first ¼", 2),
        "valid_tokens": ("valid tok/s", 0),
        "total_tokens": ("all tok/s", 0),
        "mean": ("mean RT s", 1),
        "tail": ("p95 RT s", 1),
        "batch_size": ("batch", 1),
        "pad": ("pad", 0),
        "invalid": ("invalid", 1),
        "slices": ("slices", 2),
        "few_slices": ("≤3 slices %", 1),
        "early_returns": ("early %", 1),
        "imbalance": ("CT STD s", 1),
    }
)
"""Figures of a trial: how their column is called, and its digits."""


def report(one: Experiment) -> RenderableType:
    """Both tables of an experiment, below its title."""
    title = f"{one.plan.title} (interrupted: as far as it came)" if one.interrupted else one.plan.title
    warning = [] if one.warning is None else [Text(one.warning, style="yellow")]
    head = (Text(title, style="bold"), Text(one.plan.setting, style="dim"), *warning)
    measured = [_measured(one)] if one.lines else []
    return Group(*head, *measured, _beside(one), Text())


def _measured(one: Experiment) -> Table:
    table = Table()
    table.add_column("strategy", no_wrap=True)
    table.add_column("at", no_wrap=True)
    names = ("requests", *one.plan.figures)
    for name in names:
        table.add_column(HEADS[name][0], justify="right")
    for line in one.lines:
        cells = (f"{getattr(line.trial, name):,.{HEADS[name][1]}f}" for name in names)
        table.add_row(line.strategy, line.point.label, *cells)
    return table


def _beside(one: Experiment) -> Table:
    table = Table()
    for head in ("", "measured", "published", "where"):
        table.add_column(head, justify="left", overflow="fold")
    for row in one.rows:
        table.add_row(row.what, row.measured, row.published, row.where)
    return table
