"""The result of a run: on a terminal line by line as `vllm bench serve` prints it, and as JSON under its keys and some
of our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from loadgen.bench.measures import METRICS, Accuracy, Distribution, Figures, itl, ttft
from loadgen.client.request import Outcome
from loadgen.load.load import ClientLoad, Run
from loadgen.result_file import Json


def figures_json(figures: Figures) -> Json:
    """All figures under their flat names, such as `p99_ttft_ms`; null where there was nothing to measure."""
    plain: Json = asdict(figures)
    del plain["distributions"]
    del plain["foretold"]
    plain |= accuracy_json(figures.foretold)
    del plain["ttft_by_turn"]
    plain["median_ttft_by_turn_ms"] = [1000 * seconds for seconds in figures.ttft_by_turn]
    for name, spread in figures.distributions.items():
        plain |= spread_json(name, spread, METRICS[name].unit, METRICS[name].scale)
    return plain


def spread_json(name: str, spread: Distribution | None, unit: str = "ms", scale: float = 1000.0) -> Json:
    """A distribution under names such as `p99_ttft_ms`; `scale` units are a second."""
    name = f"{name}_{unit}" if unit else name
    if spread is None:
        return {f"{figure}_{name}": None for figure in ("mean", "median", "std")}
    values = {"mean": spread.mean, "median": spread.median, "std": spread.std}
    values |= {name_percentile(percentile): value for percentile, value in spread.percentiles.items()}
    return {f"{figure}_{name}": value * scale for figure, value in values.items()}


def accuracy_json(accuracy: Accuracy | None) -> Json:
    """How well ends were foretold, under names such as `foretold_error`; nothing where none was."""
    return {} if accuracy is None else {f"foretold_{name}": value for name, value in asdict(accuracy).items()}


def name_percentile(percentile: float) -> str:
    """The name of a percentile in keys, such as p99 or p99.9."""
    return f"p{percentile:g}"


def client_json(load: ClientLoad) -> Json:
    """The load on the load generator itself during the run."""
    return {
        "client_cpu_percent": load.cpu * 100,
        "client_loop_lag_mean_ms": load.mean_lag * 1000,
        "client_loop_lag_p99_ms": load.p99_lag * 1000,
        "client_loop_lag_max_ms": load.max_lag * 1000,
        "client_warning": load.warning,
    }


def run_json(run: Run) -> Json:
    """How many requests were planned and did not end, and whether the run was interrupted."""
    unfinished = run.planned - len(run.outcomes)
    return {"num_prompts": run.planned, "interrupted": run.interrupted, "unfinished": unfinished}


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


def make_table(
    figures: Figures, client: ClientLoad, max_concurrency: int | None, rate: float | None, warmups: int
) -> Table:
    """A table of names and values. `rate` is None when arrivals have no single rate."""
    result = Table("", "", title="Serving Benchmark Result", show_header=False, title_style="bold")
    result.columns[1].justify = "right"
    for line in _list_counts(figures, max_concurrency, rate, warmups):
        result.add_row(*line)
    for turn, seconds in enumerate(figures.ttft_by_turn, start=1):
        result.add_row(f"Median TTFT of turn {turn} (ms):", f"{1000 * seconds:.2f}")
    for name in figures.distributions:
        result.add_section()
        result.add_row(f"[bold]{METRICS[name].title}[/]", "")
        for line in _list_metric(name, figures):
            result.add_row(*line)
    result.add_section()
    result.add_row("[bold]Load Generator[/]", "")
    result.add_row("CPU (% of a core):", f"{client.cpu:.1%}".removesuffix("%"))
    result.add_row("P99 event-loop lag (ms):", f"{client.p99_lag * 1000:.2f}")
    result.add_row("Maximum event-loop lag (ms):", f"{client.max_lag * 1000:.2f}")
    return result


def _list_counts(
    figures: Figures, max_concurrency: int | None, rate: float | None, warmups: int
) -> Iterator[tuple[str, str]]:
    yield "Successful requests:", str(figures.completed)
    yield "Failed requests:", str(figures.failed)
    yield "Rejected requests:", str(figures.rejected)
    yield "Cancelled requests:", str(figures.cancelled)
    yield "Warm-up requests (not counted):", str(warmups)
    if max_concurrency is not None:
        yield "Maximum request concurrency:", str(max_concurrency)
    if rate is not None:
        yield "Request rate configured (RPS):", f"{rate:.2f}"
    yield "Benchmark duration (s):", f"{figures.duration:.2f}"
    yield "Total input tokens:", str(figures.total_input_tokens)
    if figures.total_cached_tokens:
        yield "... of them kept from earlier prompts:", str(figures.total_cached_tokens)
    yield "Total generated tokens:", str(figures.total_output_tokens)
    yield "Request throughput (req/s):", f"{figures.request_throughput:.2f}"
    if figures.request_goodput is not None:
        yield "Request goodput (req/s):", f"{figures.request_goodput:.2f}"
    yield "Output token throughput (tok/s):", f"{figures.output_throughput:.2f}"
    yield "Peak output token throughput (tok/s):", f"{figures.max_output_tokens_per_s:.2f}"
    yield "Peak concurrent requests:", str(figures.max_concurrent_requests)
    yield "Total token throughput (tok/s):", f"{figures.total_token_throughput:.2f}"
    fairness = figures.jain_fairness_index
    yield "Jain fairness index:", "-" if fairness is None else f"{fairness:.3f}"
    if (told := figures.foretold) is not None:
        yield "Answers whose end was foretold:", str(told.answers)
        yield "Median error of that (%):", f"{100 * told.error:.1f}"
        if told.error_with_lengths is not None:
            yield "... had their lengths been known (%):", f"{100 * told.error_with_lengths:.1f}"
        yield "Ends within the interval (%):", f"{100 * told.inside:.1f}"


def _list_metric(name: str, figures: Figures) -> Iterator[tuple[str, str]]:
    metric, spread = METRICS[name], figures.distributions[name]
    if spread is None:
        yield f"{metric.short} ({metric.unit}):", "-"
        return
    digits = 2 if metric.unit == "ms" else 4
    values = {"Mean": spread.mean, "Median": spread.median}
    values |= {name_percentile(percentile).upper(): value for percentile, value in spread.percentiles.items()}
    for figure, value in values.items():
        yield f"{figure} {metric.short} ({metric.unit}):", f"{value * metric.scale:.{digits}f}"


def find_warnings(figures: Figures, client: ClientLoad) -> Iterable[str]:
    """Warnings that a reader must know before believing the figures."""
    if client.warning:
        yield client.warning
    if figures.uncounted:
        yield (
            f"{figures.uncounted} answers came without token counts: their chunks were counted as tokens, "
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
