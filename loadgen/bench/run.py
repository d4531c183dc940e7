"""A benchmark of one server, with `vllm bench serve`'s keys."""

import gc
import math
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path

import uvloop
from rich.table import Table

from loadgen.bench.measures import METRICS, measure
from loadgen.client.client import Client, ServerError, Target, connect
from loadgen.client.request import LoadPrompt, RequestForm, RequestOutcome
from loadgen.console import COLUMNS, TABLES, Column, format_number, table_console
from loadgen.load import Run, Show, play, schedule
from loadgen.options import Arriving, BenchFlags, RequestFlags
from loadgen.result_file import Json, explain_unwritable, save_json
from loadgen.workload import requests as workload
from models.errors import INTERRUPTED, UsageError
from models.files import require_writable_folder
from models.open_files import allow_open_files
from models.options import values_of
from models.progress import Bars, say


def details_json(outcomes: Sequence[RequestOutcome]) -> Json:
    """An entry per request, in schedule order; seconds after the start."""
    return {
        "statuses": [one.status for one in outcomes],
        "labels": [one.request.label for one in outcomes],
        "turns": [one.request.turn for one in outcomes],
        "input_lens": [one.prompt_tokens or 0 for one in outcomes],
        "cached_lens": [one.cached_tokens for one in outcomes],
        "foretold": [None if one.foretold is None else asdict(one.foretold) for one in outcomes],
        "output_lens": [one.output_tokens if one.completed else 0 for one in outcomes],
        "ttfts": [next(iter(METRICS["ttft"].samples(one)), 0.0) for one in outcomes],
        "itls": [METRICS["itl"].samples(one) for one in outcomes],
        "latencies": [one.end - one.sent for one in outcomes],
        "scheduled_times": [one.scheduled for one in outcomes],
        "start_times": [one.sent for one in outcomes],
        "queue_times": [one.sent - one.scheduled for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.failure.message if one.failure else "" for one in outcomes],
    }


MAX_ERRORS = 10


def make_table(figures: Json, metrics: Sequence[str], percentiles: Sequence[float]) -> Table:
    result = Table("", "", title="Serving Benchmark Result", show_header=False, title_style="bold")
    result.columns[1].justify = "right"

    def add(columns: Iterable[Column]) -> None:
        for column in columns:
            if (value := column.read(figures)) is not None:
                result.add_row(f"{column.label}:", f"{value:.{column.digits}f}")

    counts = [one for one in COLUMNS.values() if one.digits is not None]
    add(one for one in counts if not one.key.startswith("client_"))
    for column in map(COLUMNS.__getitem__, TABLES["runs"][:3] if "runs" in figures else ()):
        result.add_row(f"{column.label}:", format_number(column.read(figures) or 0.0))
    by_turn = figures["median_ttft_by_turn_ms"] if "runs" not in figures else None
    for turn, value in enumerate(by_turn if isinstance(by_turn, list) else (), start=1):
        result.add_row(f"Median TTFT of turn {turn} (ms):", f"{value:.2f}")
    for name in metrics:
        metric = METRICS[name]
        result.add_section()
        result.add_row(f"[bold]{metric.title}[/]", "")
        kinds = ("mean", "median", *(f"p{percentile:g}" for percentile in percentiles))
        shown = f"{metric.short} ({metric.unit})"
        digits = 2 if metric.unit == "ms" else 4
        key = f"{name}_{metric.unit}"
        add(Column(key=f"{kind}_{key}", title=f"{kind.capitalize()} {shown}", digits=digits) for kind in kinds)
        if figures[f"mean_{key}"] is None:
            result.add_row(f"{shown}:", "-")
    result.add_section()
    result.add_row("[bold]Load Generator[/]", "")
    add(one for one in counts if one.key.startswith("client_"))
    return result


def list_errors(outcomes: Sequence[RequestOutcome]) -> list[str]:
    said = Counter(f"{one.failure.kind}: {one.failure.message}" for one in outcomes if one.failure is not None)
    lines = [f"{count} x {message}" for message, count in said.most_common(MAX_ERRORS)]
    return [*lines, f"and {len(said) - MAX_ERRORS} other errors"] if len(said) > MAX_ERRORS else lines


Watch = Callable[[str, int], Show]  # begins a progress display, given a title and a number

SPARE_FILES = 64  # open files beside connections


@dataclass(frozen=True, slots=True)
class Benchmark:
    model: str
    run: Run
    figures: Json


async def bench(asked: BenchFlags, prompts: Sequence[LoadPrompt], watch: Watch) -> Benchmark:
    """Cancelled, the result covers what ended. Raises UserError, and KeyboardInterrupt while warming up."""
    async with _connect(asked, len(prompts)) as (client, form):
        requests = schedule(prompts, form, asked, asked.seed)
        await _warm_up(client, form, asked, prompts, watch)
        # present objects are permanent: collecting them would delay sending
        gc.collect()
        gc.freeze()
        show = watch("requests", sum(1 + len(prompt.follow_ups) for prompt in prompts))
        run = await play(requests, client.send, show, asked.max_concurrency, asked.think_time)
        gc.unfreeze()
    percentiles, metrics = asked.metric_percentiles, asked.percentile_metrics
    unfinished = run.planned - len(run.outcomes)
    counts: Json = {"num_prompts": run.planned, "interrupted": run.interrupted, "unfinished": unfinished}
    figures = measure(run.outcomes, run.duration, percentiles, metrics, dict(asked.goodput))
    return Benchmark(form.model, run, counts | figures | run.client)


async def warm_up(asked: BenchFlags, prompts: Sequence[LoadPrompt], watch: Watch) -> None:
    if asked.num_warmups:
        async with _connect(asked, asked.num_warmups) as (client, form):
            await _warm_up(client, form, asked, prompts, watch)


@asynccontextmanager
async def _connect(asked: BenchFlags, connections: int) -> AsyncIterator[tuple[Client, RequestForm]]:
    allow_open_files(min(connections, asked.max_concurrency or connections) + SPARE_FILES)
    target = Target(asked.url, asked.headers(), asked.timeout)
    prefix = asked.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-"
    async with connect(target, id_prefix=prefix) as client:
        yield client, RequestForm(asked.model or await client.model(), asked.endpoint, asked.fields())


async def _warm_up(
    client: Client, form: RequestForm, asked: BenchFlags, prompts: Sequence[LoadPrompt], watch: Watch
) -> None:
    first = islice(cycle(prompts), asked.num_warmups)
    requests = [form.fill(replace(prompt, follow_ups=()), index) for index, prompt in enumerate(first)]
    if not requests:
        return
    run = await play(requests, client.send, watch("warm-up", len(requests)), asked.max_concurrency)
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [outcome.failure for outcome in run.outcomes if outcome.failure is not None]
    if len(failures) == len(requests):
        raise ServerError(f"every warm-up request failed, the first with: {failures[0].message}")


def run_bench(asked: BenchFlags) -> int:
    """Raises UserError."""
    if not asked.url.startswith(("http://", "https://")):
        raise UsageError(f"--base-url {asked.url}: must begin with http:// or https://")
    metrics = tuple(dict.fromkeys(asked.percentile_metrics))
    asked = replace(asked, ignore_eos=asked.ignore_eos or workload.ignores_eos(asked), percentile_metrics=metrics)
    folder = asked.result_dir or Path()
    # a folder or a name alone asks for a file, too
    saves = asked.save_result or asked.save_detailed or asked.result_dir or asked.result_filename
    if saves:
        with explain_unwritable(folder, "--result-dir"):
            require_writable_folder(folder)
    prompts = workload.join_turns(workload.load(asked, asked.num_prompts, asked.seed), asked.turns)
    with Bars(threaded=True, latest_only=True) as bars:
        done = uvloop.run(bench(asked, prompts, bars.watch))
    _print(done, asked)
    if saves:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = folder / (asked.result_filename or _name_file(asked, done.model, date))
        save_json(path, _document(asked, done, date), "--result-dir")
    if done.run.interrupted:
        return INTERRUPTED
    return 0 if done.figures["completed"] else 1


def _print(done: Benchmark, asked: BenchFlags) -> None:
    rate = asked.request_rate or math.inf
    told = done.figures | {"num_warmups": asked.num_warmups, "max_concurrency": asked.max_concurrency}
    told |= {"request_rate": None if math.isinf(rate) else rate}
    told["total_cached_tokens"] = told["total_cached_tokens"] or None
    table_console().print(make_table(told, asked.percentile_metrics, asked.metric_percentiles))
    for note in _list_notes(done):
        say(note)


def _list_notes(done: Benchmark) -> Iterator[str]:
    if done.run.interrupted:
        yield f"interrupted: these are the {len(done.run.outcomes)} of {done.run.planned} requests that had ended"
    yield from list_errors(done.run.outcomes)
    if done.figures["client_warning"]:
        yield f"warning: {done.figures['client_warning']}"
    if done.figures["uncounted"]:
        uncounted = f"{done.figures['uncounted']} answers came without token counts"
        yield f"warning: {uncounted}: their chunks were counted as tokens, and their prompts as none"


def _document(asked: BenchFlags, done: Benchmark, date: str) -> dict[str, object]:
    return {
        "date": date,
        "label": asked.label,
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": done.model,
        "base_url": asked.url,
        "dataset_name": asked.dataset_name,
        **values_of(asked, RequestFlags, Arriving),
        "request_rate": "inf" if asked.request_rate == math.inf else asked.request_rate,  # JSON has no infinity
        "goodput": {name: bound * 1000 for name, bound in asked.goodput},
        "body": asked.fields(),
        **dict(asked.metadata),
        **done.figures,
        **(details_json(done.run.outcomes) if asked.save_detailed else {}),
    }


def _name_file(asked: BenchFlags, model: str, date: str) -> str:
    """label-rate-model-date.json, as `vllm bench serve` names it."""
    rate = f"{asked.request_rate or math.inf}qps"
    concurrency = f"-concurrency{asked.max_concurrency}" if asked.max_concurrency else ""
    return f"{asked.label}-{rate}{concurrency}-{model.rpartition('/')[2]}-{date}.json"
