"""One benchmark of one server: connect, warm up, play the schedule, measure; and the command around it, from
its flags to a table on the screen and a JSON file.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from typing import TypeAlias

import uvloop
from rich.console import Console

from loadgen.bench import report
from loadgen.bench.flags import Arriving, BenchFlags
from loadgen.bench.measures import DEFAULT_METRICS, measure
from loadgen.client.client import Client, ServerError, Target, connect
from loadgen.client.request import Prompt, RequestForm
from loadgen.load.load import Observer, Run, play, show_run
from loadgen.load.schedule import NO_CANCELLATIONS, Arrivals, Cancellations, schedule
from loadgen.result_file import Json, explain_unwritable, save_json
from loadgen.workload import requests as workload
from loadgen.workload.flags import choose
from loadgen.workload.requests import join_turns
from models.errors import INTERRUPTED, UserError
from models.files import require_writable_folder
from models.options import options_of

Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Observer]]
"""Opens the observer of some requests, given a title and their number."""

SPARE_FILES = 64
"""The open files that a process needs besides its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """All that a benchmark does to a server. Percentiles are in (0, 100], goals are seconds by metric."""

    target: Target
    model: str | None = None
    """None takes the first model that the server lists."""
    endpoint: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    arrivals: Arrivals | None = None
    """None takes the times of the prompts, if they have any; else all are due at once."""
    seed: int = 0
    max_concurrency: int | None = None
    num_warmups: int = 1
    cancellations: Cancellations = NO_CANCELLATIONS
    metrics: Sequence[str] = DEFAULT_METRICS
    percentiles: Sequence[float] = (90.0, 95.0, 99.0)
    goals: Mapping[str, float] = field(default_factory=dict)
    id_prefix: str = "bench-"
    keep_text: bool = False
    think_time: float = 0.0
    """Seconds between an answer and the request that follows it."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A run against one model, and its figures."""

    model: str
    run: Run
    figures: Json


async def bench(options: BenchOptions, prompts: Sequence[Prompt], watch: Watch) -> Benchmark:
    """Run a benchmark to its end, or until it is cancelled: then the result covers what ended.

    Raises UserError; KeyboardInterrupt when it is cancelled while warming up.
    """
    allow_open_files(min(len(prompts), options.max_concurrency or len(prompts)))
    async with connect(options.target, id_prefix=options.id_prefix, keep_text=options.keep_text) as client:
        model = options.model or await client.model()
        form = RequestForm(model, options.endpoint, options.fields)
        plan = schedule(prompts, form, options.arrivals, options.seed, options.cancellations)
        await _warm_up(client, form, options, prompts, watch)
        # Objects made by now stay to the end: a garbage collector that looked through them would delay sending.
        gc.collect()
        gc.freeze()
        try:
            with watch("requests", plan.count) as observer:
                run = await play(
                    plan.requests, plan.times, client.send, observer, options.max_concurrency, options.think_time
                )
        finally:
            gc.unfreeze()
    figures = measure(run.outcomes, run.duration, options.percentiles, options.metrics, options.goals)
    return Benchmark(model, run, figures)


async def _warm_up(
    client: Client, form: RequestForm, options: BenchOptions, prompts: Sequence[Prompt], watch: Watch
) -> None:
    """Send the first prompts, over and over if need be, and forget how long they took; one at least must succeed."""
    count = options.num_warmups
    requests = [
        form.fill(replace(prompt, follow_ups=()), index) for index, prompt in enumerate(islice(cycle(prompts), count))
    ]
    if not requests:
        return
    with watch("warm-up", count) as observer:
        run = await play(requests, [0.0] * count, client.send, observer, options.max_concurrency)
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [outcome.failure for outcome in run.outcomes if outcome.failure is not None]
    if len(failures) == count:
        raise ServerError(f"every warm-up request failed, the first with: {failures[0].message}")


def allow_open_files(connections: int) -> None:
    """Let this process have so many connections open, as far as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def options(asked: BenchFlags, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ) -> BenchOptions:
    """Read the flags together; `ignore_eos` asks for it also without the flag. Raises UserError."""
    if not asked.url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {asked.url}: must begin with http:// or https://")
    return BenchOptions(
        target=Target(asked.url, asked.headers(environ), asked.timeout),
        model=asked.model,
        endpoint=asked.endpoint,
        fields=asked.fields(ignore_eos),
        arrivals=None if asked.request_rate is None else Arrivals(asked.request_rate, asked.burstiness),
        seed=asked.seed,
        max_concurrency=asked.max_concurrency,
        num_warmups=asked.num_warmups,
        cancellations=Cancellations(asked.cancel_rate, asked.cancel_delay),
        metrics=tuple(dict.fromkeys(asked.percentile_metrics)),
        percentiles=asked.metric_percentiles,
        goals=dict(asked.goodput),
        id_prefix=asked.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-",
        keep_text=asked.save_detailed or asked.turns > 1,
        think_time=asked.think_time,
    )


FOLDER_FLAG = "--result-dir"


def run_bench(asked: BenchFlags) -> int:
    """Run, print and save; returns the exit code. Raises UserError."""
    choice = choose(asked, asked.num_prompts, asked.seed)
    what = options(asked, ignore_eos=workload.ignores_eos(choice))
    if _saves(asked):
        with explain_unwritable(_find_folder(asked), FOLDER_FLAG):
            require_writable_folder(_find_folder(asked))
    prompts = join_turns(workload.load(choice), asked.turns)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(bench(what, prompts, show_run))
    _print(done, what)
    if _saves(asked):
        _save(asked, done, what)
    if done.run.interrupted:
        return INTERRUPTED
    return 0 if done.figures["completed"] else 1


def _print(done: Benchmark, what: BenchOptions) -> None:
    rate = what.arrivals.rate if what.arrivals else math.inf
    told = done.figures | {"num_warmups": what.num_warmups, "max_concurrency": what.max_concurrency}
    told |= {"request_rate": None if math.isinf(rate) else rate}
    told["total_cached_tokens"] = told["total_cached_tokens"] or None
    Console().print(report.make_table(told, done.run.client, what.metrics, what.percentiles))
    errors = Console(stderr=True)
    if done.run.interrupted:
        ended, planned = len(done.run.outcomes), done.run.planned
        line = f"interrupted: these are the {ended} of {planned} requests that had ended"
        report.print_lines(errors, [line], "yellow")
    report.print_lines(errors, report.list_errors(done.run.outcomes), "red")
    warnings = report.find_warnings(done.figures, done.run.client)
    report.print_lines(errors, (f"warning: {warning}" for warning in warnings), "yellow")


def _saves(asked: BenchFlags) -> bool:
    """Whether the result is written to a file: also when only the folder or the name of one is given."""
    return bool(asked.save_result or asked.save_detailed or asked.result_dir or asked.result_filename)


def _find_folder(asked: BenchFlags) -> Path:
    return Path(asked.result_dir or ".")


def _save(asked: BenchFlags, done: Benchmark, what: BenchOptions) -> None:
    date = datetime.now().strftime("%Y%m%d-%H%M%S")
    document = {"date": date, "label": asked.label, **_list_setting(asked, done, what)}
    document |= dict(asked.metadata) | report.run_json(done.run) | done.figures
    document |= report.client_json(done.run.client)
    if asked.save_detailed:
        document |= report.details_json(done.run.outcomes)
    path = _find_folder(asked) / (asked.result_filename or _name_file(asked, done.model, date))
    save_json(path, document, FOLDER_FLAG)


def _list_setting(asked: BenchFlags, done: Benchmark, what: BenchOptions) -> dict[str, object]:
    """The settings of the run, under the names of the flags. Headers stay out: they may hold keys."""
    return {
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": done.model,
        "base_url": what.target.base_url,
        "dataset_name": asked.dataset,
        "seed": what.seed,
        "num_warmups": what.num_warmups,
        "max_concurrency": what.max_concurrency,
        **{option.name: getattr(asked, option.name) for option in options_of(Arriving)},
        "request_rate": _write_rate(asked),
        "goodput": {name: bound * 1000 for name, bound in what.goals.items()},
        "body": dict(what.fields),
    }


def _write_rate(asked: BenchFlags) -> float | str | None:
    """The request rate as its flag has it: infinity is a word, since JSON has none."""
    return "inf" if asked.request_rate == math.inf else asked.request_rate


def _name_file(asked: BenchFlags, model: str, date: str) -> str:
    """The name of the result file, as `vllm bench serve` forms it: label-rate-model-date.json."""
    rate = f"{_write_rate(asked) or 'inf'}qps"
    concurrency = f"-concurrency{asked.max_concurrency}" if asked.max_concurrency else ""
    return f"{asked.label}-{rate}{concurrency}-{model.rpartition('/')[2]}-{date}.json"
