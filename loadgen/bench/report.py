"""The result of a run on a terminal, line by line as `vllm bench serve` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from loadgen.bench.measures import Figures
from loadgen.bench.metrics import METRICS
from loadgen.bench.result import name_percentile
from loadgen.client.lag import ClientLoad
from loadgen.client.outcome import Outcome

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
