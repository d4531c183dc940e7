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
COUNTS: tuple[tuple[str, str, float, int], ...] = (
    ("Successful requests", "completed", 1, 0),
    ("Failed requests", "failed", 1, 0),
    ("Rejected requests", "rejected", 1, 0),
    ("Cancelled requests", "cancelled", 1, 0),
    ("Warm-up requests (not counted)", "num_warmups", 1, 0),
    ("Maximum request concurrency", "max_concurrency", 1, 0),
    ("Request rate configured (RPS)", "request_rate", 1, 2),
    ("Benchmark duration (s)", "duration", 1, 2),
    ("Total input tokens", "total_input_tokens", 1, 0),
    ("... of them kept from earlier prompts", "total_cached_tokens", 1, 0),
    ("Total generated tokens", "total_output_tokens", 1, 0),
    ("Request throughput (req/s)", "request_throughput", 1, 2),
    ("Request goodput (req/s)", "request_goodput", 1, 2),
    ("Output token throughput (tok/s)", "output_throughput", 1, 2),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s", 1, 2),
    ("Peak concurrent requests", "max_concurrent_requests", 1, 0),
    ("Total token throughput (tok/s)", "total_token_throughput", 1, 2),
    ("Jain fairness index", "jain_fairness_index", 1, 3),
    ("Answers whose end was foretold", "foretold_answers", 1, 0),
    ("Median error of that (%)", "foretold_error", 100, 1),
    ("... had their lengths been known (%)", "foretold_error_with_lengths", 100, 1),
    ("Ends within the interval (%)", "foretold_inside", 100, 1),
)
"""Lines of the table: name, key, factor to the unit, digits. A figure that there is not has none."""
CLIENT = (
    ("CPU (% of a core)", "client_cpu_percent", 1, 1),
    ("P99 event-loop lag (ms)", "client_loop_lag_p99_ms", 1, 2),
    ("Maximum event-loop lag (ms)", "client_loop_lag_max_ms", 1, 2),
)


def make_table(figures: Json, metrics: Sequence[str], percentiles: Sequence[float]) -> Table:
    """A table of names and values, of some metrics; `figures` may have `num_warmups` and the like besides."""
    result = Table("", "", title="Serving Benchmark Result", show_header=False, title_style="bold")
    result.columns[1].justify = "right"

    def add(lines: Iterable[tuple[str, str, float, int]], told: Json) -> None:
        for name, key, factor, digits in lines:
            value = told.get(key)
            if isinstance(value, int | float):
                result.add_row(f"{name}:", f"{value * factor:.{digits}f}")

    add(COUNTS, figures)
    by_turn = figures["median_ttft_by_turn_ms"]
    for turn, value in enumerate(by_turn if isinstance(by_turn, list) else (), start=1):
        result.add_row(f"Median TTFT of turn {turn} (ms):", f"{value:.2f}")
    for metric in map(METRICS.__getitem__, metrics):
        result.add_section()
        result.add_row(f"[bold]{metric.title}[/]", "")
        kinds = ("mean", "median", *map(name_percentile, percentiles))
        shown = f"{metric.short} ({metric.unit})"
        digits = 2 if metric.unit == "ms" else 4
        keys = {kind: f"{kind}_{metric.name}_{metric.unit}" for kind in kinds}
        add(((f"{kind.capitalize()} {shown}", key, 1, digits) for kind, key in keys.items()), figures)
        if figures[keys["mean"]] is None:
            result.add_row(f"{shown}:", "-")
    result.add_section()
    result.add_row("[bold]Load Generator[/]", "")
    add(CLIENT, figures)
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
