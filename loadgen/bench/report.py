"""The result of a run: on a terminal line by line as `vllm bench serve` prints it, and as JSON under its keys and some
of our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from loadgen.bench.measures import METRICS, itl, name_percentile, ttft
from loadgen.client.request import Outcome
from loadgen.console import COLUMNS, Column
from loadgen.result_file import Json


def details_json(outcomes: Sequence[Outcome]) -> Json:
    """Lists with an entry per request, in the order of the schedule; times in seconds after the start."""
    return {
        "statuses": [one.status for one in outcomes],
        "labels": [one.label for one in outcomes],
        "turns": [one.turn for one in outcomes],
        "input_lens": [one.prompt_tokens or 0 for one in outcomes],
        "cached_lens": [one.cached_tokens for one in outcomes],
        "foretold": [None if one.foretold is None else asdict(one.foretold) for one in outcomes],
        "output_lens": [one.output_tokens if one.completed else 0 for one in outcomes],
        "ttfts": [next(iter(ttft(one)), 0.0) for one in outcomes],
        "itls": [itl(one) for one in outcomes],
        "latencies": [one.end - one.sent for one in outcomes],
        "scheduled_times": [one.scheduled for one in outcomes],
        "start_times": [one.sent for one in outcomes],
        "queue_times": [one.sent - one.scheduled for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.failure.message if one.failure else "" for one in outcomes],
    }


MAX_ERRORS = 10


def make_table(figures: Json, metrics: Sequence[str], percentiles: Sequence[float]) -> Table:
    """A table of names and values, of some metrics; `figures` may have `num_warmups` and the like besides."""
    result = Table("", "", title="Serving Benchmark Result", show_header=False, title_style="bold")
    result.columns[1].justify = "right"

    def add(columns: Iterable[Column]) -> None:
        for column in columns:
            if (value := column.read(figures)) is not None:
                result.add_row(f"{column.label}:", f"{value:.{column.digits}f}")

    counts = [one for one in COLUMNS.values() if one.digits is not None]
    add(one for one in counts if not one.key.startswith("client_"))
    by_turn = figures["median_ttft_by_turn_ms"]
    for turn, value in enumerate(by_turn if isinstance(by_turn, list) else (), start=1):
        result.add_row(f"Median TTFT of turn {turn} (ms):", f"{value:.2f}")
    for metric in map(METRICS.__getitem__, metrics):
        result.add_section()
        result.add_row(f"[bold]{metric.title}[/]", "")
        kinds = ("mean", "median", *map(name_percentile, percentiles))
        shown = f"{metric.short} ({metric.unit})"
        digits = 2 if metric.unit == "ms" else 4
        key = f"{metric.name}_{metric.unit}"
        add(Column(key=f"{kind}_{key}", title=f"{kind.capitalize()} {shown}", digits=digits) for kind in kinds)
        if figures[f"mean_{key}"] is None:
            result.add_row(f"{shown}:", "-")
    result.add_section()
    result.add_row("[bold]Load Generator[/]", "")
    add(one for one in counts if one.key.startswith("client_"))
    return result


def find_warnings(figures: Json) -> Iterable[str]:
    """Warnings that a reader must know before believing the figures."""
    if figures["client_warning"]:
        yield str(figures["client_warning"])
    if figures["uncounted"]:
        yield (
            f"{figures['uncounted']} answers came without token counts: their chunks were counted as tokens, "
            "and their prompts as none"
        )


def list_errors(outcomes: Sequence[Outcome]) -> list[str]:
    """The errors of a run, the most frequent first, each with its count."""
    said = Counter(f"{one.failure.kind}: {one.failure.message}" for one in outcomes if one.failure is not None)
    lines = [f"{count} x {message}" for message, count in said.most_common(MAX_ERRORS)]
    return [*lines, f"and {len(said) - MAX_ERRORS} other errors"] if len(said) > MAX_ERRORS else lines


def print_lines(console: Console, lines: Iterable[str], style: str) -> None:
    """Print lines as they are: brackets in them are no markup."""
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
