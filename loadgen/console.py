"""Tables as plain data, shown on a terminal, short numbers for figures; and the columns of every table of figures:
where a figure stands in a result, its name, unit and better direction.

A result is a flat mapping, as `bench` writes it to JSON: `mean_jct_ms`, `p99_ttft_ms`, `request_throughput`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.table import Table as TextTable

FILE_WIDTH = 160
"""Columns for tables that go to a file or a pipe, which have no window to fit into."""

WIDEST = 10_000


class TableConsole(Console):
    """Standard output, where a table whose words do not fit into the window is wider than that."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print renderables; the terminal breaks lines that are too long for it."""
        wide = self.options.update(max_width=WIDEST)
        self.width = max(self.width, *(self.measure(one, options=wide).minimum for one in objects))
        super().print(*objects, **options)


def table_console() -> Console:
    """Standard output, as wide as the terminal, or as wide as tables need."""
    console = TableConsole()
    return console if console.is_terminal else TableConsole(width=FILE_WIDTH)


def format_number(value: float) -> str:
    """A figure as people write it: with three or four significant digits, and commas between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tell_duration(seconds: float) -> str:
    """A sentence about how long a command takes, before it starts."""
    told = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    return f"It takes some {told} on one core; Ctrl-C leaves what was measured until then."


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with more to it than its text."""

    text: str
    kind: str = ""
    """A class of the style sheet."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a caption; the first cell of each row is its heading."""

    caption: str
    heads: tuple[str, ...]
    """Above the columns; empty: none."""
    rows: tuple[tuple[str | Cell, ...], ...]
    kind: str = ""
    """A class of the style sheet."""


def show_table(table: Table) -> TextTable:
    """A page's table for a terminal."""
    shown = TextTable(title=table.caption, title_justify="left")
    for place, head in enumerate(table.heads):
        shown.add_column(head, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row))
    return shown


Better: TypeAlias = Literal["higher", "lower"]
Figures: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity that a result has a figure of."""

    key: str
    title: str
    short: str  # for axes and narrow tables
    unit: str = ""
    better: Better | None = None  # None: neither direction is better by itself
    scale: float = 1.0  # from the stored figure to the unit
    only_completed: bool = False  # whether dropping requests makes it look better

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def axis(self) -> str:
        return f"{self.short} ({self.unit})" if self.unit else self.short

    def read(self, figures: Figures) -> float | None:
        """The figure of a result in the column's unit; None where there is none."""
        value = figures.get(self.key)
        return float(value) * self.scale if isinstance(value, int | float) else None


def _spread(
    name: str, title: str, short: str, *, unit: str = "s", stored: str = "ms", scale: float = 0.001
) -> list[Column]:
    """The mean, the median and the percentiles of something that completed requests took."""
    kinds = {
        "mean": f"Mean {title}",
        "median": f"Median {title}",
        "p90": f"90th percentile of {title}",
        "p95": f"95th percentile of {title}",
        "p99": f"99th percentile of {title}",
        "p100": f"Longest {title}",
    }
    return [
        Column(
            f"{kind}_{name}_{stored}" if stored else f"{kind}_{name}",
            words,
            f"{'longest' if kind == 'p100' else kind} {short}",
            unit,
            "lower",
            scale,
            only_completed=True,
        )
        for kind, words in kinds.items()
    ]


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        one.key: one
        for one in (
            Column("completed", "Completed requests", "done"),
            Column("failed", "Failed requests", "failed", better="lower"),
            Column("rejected", "Rejected requests", "rejected", better="lower"),
            Column("duration", "Duration", "duration", "s"),
            Column("request_throughput", "Request throughput", "throughput", "requests/s", "higher"),
            Column("output_throughput", "Output token throughput", "throughput", "tokens/s", "higher"),
            *_spread("jct", "job completion time", "JCT"),
            *_spread("ttft", "time to first token", "TTFT"),
            *_spread("tpot", "time per output token", "TPOT", unit="ms", scale=1.0),
            *_spread("normalized_latency", "normalized latency", "JCT per token", stored="s", scale=1.0),
            *_spread(
                "slowdown", "slowdown (JCT over that of the request alone)", "slowdown", unit="", stored="", scale=1.0
            ),
            Column("jain_fairness_index", "Jain fairness index", "Jain index", "", "higher", only_completed=True),
            Column("wait", "Longest wait", "longest wait", "s", "lower"),
            Column("later", "How much later the latest request ended", "later", better="lower"),
            Column("mean_batch_size", "Mean batch size", "batch", "rows"),
            Column("pad_tokens", "Pad tokens of prefills a request", "pad", better="lower"),
            Column("invalid_tokens", "Invalid tokens a request", "invalid", better="lower"),
            Column("slices", "Slices a request", "slices"),
            Column("foretold_error", "Median error of foretold ends", "error of ends", "%", "lower", 100.0),
            Column("foretold_error_with_lengths", "... had lengths been known", "with lengths", "%", "lower", 100.0),
            Column("foretold_inside", "Ends within the interval", "inside", "%", "higher", 100.0),
            Column("completion_std", "STD of completion times", "STD of ends", "s", "lower"),
            Column("server_mean_batch_rows", "Mean batch size", "batch size", "rows"),
            Column("server_pad_tokens", "Pad tokens", "pad tokens", "", "lower"),
            Column("server_invalid_tokens", "Invalid tokens", "invalid tokens", "", "lower"),
            Column(
                "server_load_imbalance_s",
                "Load imbalance: standard deviation of executors' busy times",
                "load imbalance",
                "s",
                "lower",
            ),
            Column("server_mean_prediction_error_tokens", "Mean error of predicted lengths", "error", "tokens"),
        )
    }
)
"""Every column, by its key."""

BRIEF = ("mean_jct_ms", "p99_jct_ms", "mean_ttft_ms", "mean_normalized_latency_s", "request_throughput")
"""What a table shows first."""


def tabulate(caption: str, results: Mapping[str, Sequence[Figures]], keys: Sequence[str] = BRIEF) -> Table:
    """A line a name: each figure's mean over the name's results, from the lowest to the highest where there are
    several, and how far it is from the first name's."""
    columns = [COLUMNS[key] for key in keys]
    base = next(iter(results.values()), ())
    rows = [
        (name, *(_write_cell(one, found, base if found is not base else ()) for one in columns))
        for name, found in results.items()
    ]
    return Table(caption, ("", *(one.axis for one in columns)), tuple(rows))


def set_upright(table: Table, columns: Sequence[Column]) -> Table:
    """A table of these columns with a line a column and a name above each of its lines."""
    names, *lines = zip(*table.rows, strict=True)
    rows = tuple((column.label, *cells) for column, cells in zip(columns, lines, strict=True))
    return Table(table.caption, ("", *map(str, names)), rows)


def _write_cell(column: Column, results: Sequence[Figures], base: Sequence[Figures]) -> str:
    values, others = read_all(column, results), read_all(column, base)
    if not values:
        return "-"
    mean = fmean(values)
    text = format_number(mean)
    if len(values) > 1 and min(values) < max(values):
        text += f" ({format_number(min(values))}–{format_number(max(values))})"
    return text + (f" {mean / fmean(others) - 1:+.0%}" if others and fmean(others) else "")


def read_all(column: Column, results: Sequence[Figures]) -> list[float]:
    """The column's figures of the results that have one."""
    return [value for one in results if (value := column.read(one)) is not None]
