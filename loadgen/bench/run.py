"""One benchmark of one server: connect, warm up, play the schedule, measure; and the command around it, from
its flags to a table on the screen and a JSON file.
"""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from typing import TypeAlias

import uvloop
from rich.console import Console

from loadgen.bench import report
from loadgen.bench.measures import measure
from loadgen.client.client import Client, ServerError, Target, connect
from loadgen.client.request import Prompt, RequestForm
from loadgen.load.load import Run, Show, play, show_run
from loadgen.load.schedule import Arrivals, schedule
from loadgen.options import Arriving, BenchFlags
from loadgen.result_file import Json, explain_unwritable, save_json
from loadgen.workload import requests as workload
from loadgen.workload.requests import join_turns
from models.errors import INTERRUPTED, UserError
from models.files import require_writable_folder
from models.options import options_of

Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Show]]
"""Opens what shows the progress of some requests, given a title and their number."""

SPARE_FILES = 64
"""The open files that a process needs besides its connections."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A run against one model, and its figures, the client's own among them."""

    model: str
    run: Run
    figures: Json


async def bench(asked: BenchFlags, prompts: Sequence[Prompt], watch: Watch) -> Benchmark:
    """Run a benchmark to its end, or until it is cancelled: then the result covers what ended.

    Raises UserError; KeyboardInterrupt when it is cancelled while warming up.
    """
    allow_open_files(min(len(prompts), asked.max_concurrency or len(prompts)))
    target = Target(asked.url, asked.headers(), asked.timeout)
    prefix = asked.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-"
    async with connect(target, id_prefix=prefix, keep_text=asked.save_detailed or asked.turns > 1) as client:
        model = asked.model or await client.model()
        form = RequestForm(model, asked.endpoint, asked.fields())
        arrivals = None if asked.request_rate is None else Arrivals(asked.request_rate, asked.burstiness)
        plan = schedule(prompts, form, arrivals, asked.seed, asked.cancel_rate, asked.cancel_delay)
        await _warm_up(client, form, asked, prompts, watch)
        # Objects made by now stay to the end: a garbage collector that looked through them would delay sending.
        gc.collect()
        gc.freeze()
        try:
            with watch("requests", plan.count) as show:
                run = await play(plan.requests, plan.times, client.send, show, asked.max_concurrency, asked.think_time)
        finally:
            gc.unfreeze()
    percentiles, metrics = asked.metric_percentiles, asked.percentile_metrics
    unfinished = run.planned - len(run.outcomes)
    counts: Json = {"num_prompts": run.planned, "interrupted": run.interrupted, "unfinished": unfinished}
    figures = measure(run.outcomes, run.duration, percentiles, metrics, dict(asked.goodput))
    return Benchmark(model, run, counts | figures | run.client)


async def _warm_up(
    client: Client, form: RequestForm, asked: BenchFlags, prompts: Sequence[Prompt], watch: Watch
) -> None:
    """Send the first prompts, over and over if need be, and forget how long they took; one at least must succeed."""
    first = islice(cycle(prompts), asked.num_warmups)
    requests = [form.fill(replace(prompt, follow_ups=()), index) for index, prompt in enumerate(first)]
    if not requests:
        return
    with watch("warm-up", len(requests)) as show:
        run = await play(requests, [0.0] * len(requests), client.send, show, asked.max_concurrency)
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [outcome.failure for outcome in run.outcomes if outcome.failure is not None]
    if len(failures) == len(requests):
        raise ServerError(f"every warm-up request failed, the first with: {failures[0].message}")


def allow_open_files(connections: int) -> None:
    """Let this process have so many connections open, as far as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


FOLDER_FLAG = "--result-dir"


def run_bench(asked: BenchFlags) -> int:
    """Run, print and save; returns the exit code. Raises UserError."""
    if not asked.url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {asked.url}: must begin with http:// or https://")
    metrics = tuple(dict.fromkeys(asked.percentile_metrics))
    eos = asked.ignore_eos or workload.ignores_eos(asked)
    asked = replace(asked, ignore_eos=eos, percentile_metrics=metrics)
    folder = asked.result_dir or Path()
    # A folder or a name alone asks for a file too.
    saves = asked.save_result or asked.save_detailed or asked.result_dir or asked.result_filename
    if saves:
        with explain_unwritable(folder, FOLDER_FLAG):
            require_writable_folder(folder)
    prompts = join_turns(workload.load(asked, asked.num_prompts, asked.seed), asked.turns)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(bench(asked, prompts, show_run))
    _print(done, asked)
    if saves:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        path = folder / (asked.result_filename or _name_file(asked, done.model, date))
        save_json(path, _document(asked, done, date), FOLDER_FLAG)
    if done.run.interrupted:
        return INTERRUPTED
    return 0 if done.figures["completed"] else 1


def _print(done: Benchmark, asked: BenchFlags) -> None:
    rate = asked.request_rate or math.inf
    told = done.figures | {"num_warmups": asked.num_warmups, "max_concurrency": asked.max_concurrency}
    told |= {"request_rate": None if math.isinf(rate) else rate}
    told["total_cached_tokens"] = told["total_cached_tokens"] or None
    Console().print(report.make_table(told, asked.percentile_metrics, asked.metric_percentiles))
    errors = Console(stderr=True)
    if done.run.interrupted:
        ended, planned = len(done.run.outcomes), done.run.planned
        line = f"interrupted: these are the {ended} of {planned} requests that had ended"
        report.print_lines(errors, [line], "yellow")
    report.print_lines(errors, report.list_errors(done.run.outcomes), "red")
    warnings = report.find_warnings(done.figures)
    report.print_lines(errors, (f"warning: {warning}" for warning in warnings), "yellow")


def _document(asked: BenchFlags, done: Benchmark, date: str) -> dict[str, object]:
    """The content of the result file, settings under the names of the flags. Headers stay out: they may hold keys."""
    return {
        "date": date,
        "label": asked.label,
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": done.model,
        "base_url": asked.url,
        "dataset_name": asked.dataset,
        "seed": asked.seed,
        "num_warmups": asked.num_warmups,
        "max_concurrency": asked.max_concurrency,
        **{option.name: getattr(asked, option.name) for option in options_of(Arriving)},
        "request_rate": _write_rate(asked),
        "goodput": {name: bound * 1000 for name, bound in asked.goodput},
        "body": asked.fields(),
        **dict(asked.metadata),
        **done.figures,
        **(report.details_json(done.run.outcomes) if asked.save_detailed else {}),
    }


def _write_rate(asked: BenchFlags) -> float | str | None:
    """The request rate as its flag has it: infinity is a word, since JSON has none."""
    return "inf" if asked.request_rate == math.inf else asked.request_rate


def _name_file(asked: BenchFlags, model: str, date: str) -> str:
    """The name of the result file, as `vllm bench serve` forms it: label-rate-model-date.json."""
    rate = f"{_write_rate(asked) or 'inf'}qps"
    concurrency = f"-concurrency{asked.max_concurrency}" if asked.max_concurrency else ""
    return f"{asked.label}-{rate}{concurrency}-{model.rpartition('/')[2]}-{date}.json"
