"""Simulations side by side: a table for the eye, and plain data for a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType

from rich.table import Table

from loadgen.bench.accuracy import Accuracy
from loadgen.bench.distribution import Distribution
from loadgen.bench.result import accuracy_json, spread_json
from loadgen.result_file import Json
from loadgen.simulate.figures import SimulatedFigures
from loadgen.simulate.simulation import Simulation

Cell = Callable[[SimulatedFigures], str]

SIDE_BY_SIDE = 6
"""Strategies that have a column each; more have a line each, with the figures that are asked for most."""

BRIEF: Mapping[str, str] = MappingProxyType(
    {
        "Completed requests": "done",
        "Request throughput (req/s)": "req/s",
        "Output token throughput (tok/s)": "tok/s",
        "Mean JCT (s)": "mean JCT s",
        "Median JCT (s)": "median",
        "P95 JCT (s)": "p95",
        "P99 JCT (s)": "p99",
        "Longest JCT (s)": "longest",
        "Mean TTFT (s)": "mean TTFT s",
        "Mean batch size": "batch",
        "Pad tokens of prefills a request": "pad",
        "Invalid tokens a request": "invalid",
        "Slices a request": "slices",
    }
)
"""Figures of a strategy's line -> the heads of their columns."""


def table(results: Mapping[str, SimulatedFigures], caption: str | None = None) -> Table:
    """The table of all strategies' figures; the caption says what was simulated."""
    shown = _columns(results) if len(results) <= SIDE_BY_SIDE else _rows(results)
    shown.caption = caption
    return shown


def _columns(results: Mapping[str, SimulatedFigures]) -> Table:
    """A line a figure, a column a strategy."""
    shown = Table(title="Simulation Result", title_style="bold")
    shown.add_column("", no_wrap=True)
    for name in results:
        shown.add_column(name, justify="right")
    for title, cell in _lines():
        shown.add_row(title, *(cell(one) for one in results.values()))
    return shown


def _rows(results: Mapping[str, SimulatedFigures]) -> Table:
    """A line a strategy."""
    shown = Table(title="Simulation Result", title_style="bold")
    shown.add_column("", no_wrap=True)
    cells = [cell for title, cell in _lines() if title in BRIEF]
    for head in BRIEF.values():
        shown.add_column(head, justify="right")
    for name, one in results.items():
        shown.add_row(name, *(cell(one) for cell in cells))
    return shown


def _lines() -> list[tuple[str, Cell]]:
    lines: list[tuple[str, Cell]] = [
        ("Completed requests", lambda one: f"{one.completed}"),
        ("Failed requests", lambda one: f"{one.failed}"),
        ("Duration (s)", lambda one: f"{one.duration:.1f}"),
        ("Request throughput (req/s)", lambda one: f"{one.request_throughput:.2f}"),
        ("Output token throughput (tok/s)", lambda one: f"{one.output_throughput:.1f}"),
    ]
    for title, of in (("JCT", lambda one: one.jct), ("TTFT", lambda one: one.ttft)):
        lines += _spread_lines(title, of)
    return lines + [
        ("Mean batch size", lambda one: f"{one.mean_batch_size:.1f}"),
        ("Pad tokens of prefills a request", lambda one: f"{one.pad_tokens:.1f}"),
        ("Invalid tokens a request", lambda one: f"{one.invalid_tokens:.1f}"),
        ("Slices a request", lambda one: f"{one.slices:.2f}"),
        ("Median error of foretold ends (%)", lambda one: _percent(one, lambda told: told.error)),
        ("... had lengths been known (%)", lambda one: _percent(one, lambda told: told.error_with_lengths)),
        ("Ends within the interval (%)", lambda one: _percent(one, lambda told: told.inside)),
        ("STD of completion times (s)", lambda one: f"{one.completion_std:.2f}"),
    ]


def _percent(one: SimulatedFigures, figure: Callable[[Accuracy], float | None]) -> str:
    value = None if one.foretold is None else figure(one.foretold)
    return "-" if value is None else f"{100 * value:.1f}"


def _spread_lines(title: str, of: Callable[[SimulatedFigures], Distribution | None]) -> list[tuple[str, Cell]]:
    def cell(figure: Callable[[Distribution], float]) -> Cell:
        def show(one: SimulatedFigures) -> str:
            spread = of(one)
            return "-" if spread is None else f"{figure(spread):.2f}"

        return show

    return [
        (f"Mean {title} (s)", cell(lambda spread: spread.mean)),
        (f"Median {title} (s)", cell(lambda spread: spread.median)),
        (f"P95 {title} (s)", cell(lambda spread: spread.percentiles[95.0])),
        (f"P99 {title} (s)", cell(lambda spread: spread.percentiles[99.0])),
        (f"Longest {title} (s)", cell(lambda spread: spread.percentiles[100.0])),
    ]


def figures_json(one: SimulatedFigures) -> Json:
    """All figures under flat names, such as `p99_jct_ms`; null where nothing completed."""
    plain = {name: value for name, value in asdict(one).items() if name not in ("jct", "ttft", "foretold")}
    return plain | accuracy_json(one.foretold) | spread_json("jct", one.jct) | spread_json("ttft", one.ttft)


def details_json(simulation: Simulation) -> Json:
    """Every request, in order of arrival, and every executor; times in seconds."""
    return {
        "requests": [asdict(one) for one in simulation.requests],
        "workers": [asdict(one) for one in simulation.workers],
    }


def find_frontier(rows: Mapping[str, tuple[float, ...]]) -> set[str]:
    """The names whose figures, of which less is better, no other name undercuts in one without exceeding in another."""
    return {
        name
        for name, own in rows.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in rows.values())
    }
