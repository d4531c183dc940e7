"""Tables on a terminal, short numbers, and the columns of all tables (columns.toml) of results."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as TextTable

from loadgen.result_file import FIGURES

FILE_WIDTH = 10_000  # files and pipes have no edge
NAMES_WIDTH = 80  # many names of a row go on in the next line


class TableConsole(Console):
    """Wider than the window where words do not fit."""

    def print(self, *objects: Any, **options: Any) -> None:
        wide = self.options.update(max_width=FILE_WIDTH)
        self.width = max(self.width, *(self.measure(one, options=wide).minimum for one in objects))
        super().print(*objects, **options)


def table_console() -> Console:
    console = TableConsole()
    return console if console.is_terminal else TableConsole(width=FILE_WIDTH)


def format_number(value: float) -> str:
    """Three or four significant digits, commas between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tell_duration(seconds: float) -> str:
    told = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    return f"It takes some {told} on one core; Ctrl-C leaves what was measured until then."


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of each row is its heading."""

    caption: str
    heads: tuple[str, ...]  # empty: none
    rows: tuple[tuple[str, ...], ...]
    kind: str = ""  # style sheet class


def show_table(table: Table) -> TextTable:
    shown = TextTable(title=table.caption, title_justify="left")
    longest = max((len(word) for row in table.rows for word in row[0].split()), default=0)
    shown.add_column(*table.heads[:1], min_width=longest, max_width=max(longest, NAMES_WIDTH))
    for head in table.heads[1:]:
        shown.add_column(head, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


Better = Literal["higher", "lower"]
Figures = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    key: str
    title: str
    short: str = ""
    unit: str = ""
    better: Better | None = None
    scale: float = 1.0
    digits: int | None = None
    only_completed: bool = False

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def axis(self) -> str:
        return f"{self.short} ({self.unit})" if self.unit else self.short

    def read(self, figures: Figures) -> float | None:
        value = figures.get(self.key)
        return float(value) * self.scale if isinstance(value, int | float) else None


def _list_columns() -> Iterator[Column]:
    yield from (Column(**one) for one in FIGURES["columns"])
    for one, (kind, (words, brief)) in product(FIGURES["latencies"], FIGURES["kinds"].items()):
        told = {"title": f"{words} {one['title']}", "short": f"{brief} {one['short']}"}
        yield Column(**one | told | {"key": f"{kind}_{one['key']}"}, better="lower", only_completed=True)


COLUMNS: Mapping[str, Column] = {one.key: one for one in _list_columns()}  # by key

# keys of columns
TABLES: Mapping[str, tuple[str, ...]] = {name: tuple(keys) for name, keys in FIGURES["tables"].items()}

BRIEF = TABLES["brief"]  # shown first


def tabulate(caption: str, groups: Iterable[Mapping[str, Sequence[Figures]]], keys: Sequence[str]) -> Table:
    """A line a name: each figure's mean, range where there are several results, and distance from its group's first."""
    columns = [COLUMNS[key] for key in keys]
    rows = [
        (name, *(_write_cell(one, found, base if found is not base else ()) for one in columns))
        for results in groups
        for base in [next(iter(results.values()), ())]
        for name, found in results.items()
    ]
    return Table(caption, ("", *(one.axis for one in columns)), tuple(rows))


def set_upright(table: Table, keys: Sequence[str]) -> Table:
    """A line a column, names above."""
    names, *lines = zip(*table.rows, strict=True)
    rows = tuple((COLUMNS[key].label, *cells) for key, cells in zip(keys, lines, strict=True))
    return Table(table.caption, ("", *names), rows)


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
    return [value for one in results if (value := column.read(one)) is not None]
