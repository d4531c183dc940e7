"""Carries out `lengthwise bench`: from its flags to a table on the screen and a JSON file."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import uvloop
from rich.console import Console

from loadgen.bench import report
from loadgen.bench.flags import Arriving, BenchFlags
from loadgen.bench.run import Benchmark, BenchOptions, bench
from loadgen.client.client import Target
from loadgen.load.arrivals import Arrivals, Ramp
from loadgen.load.progress import show_run
from loadgen.load.schedule import Cancellations
from loadgen.result_file import explain_unwritable, save_json
from loadgen.workload import table as workload
from loadgen.workload.flags import choose
from loadgen.workload.table import join_turns
from models.errors import INTERRUPTED, UserError
from models.files import require_writable_folder
from models.flags import read_options
from models.options import options_of


def options(asked: BenchFlags, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ) -> BenchOptions:
    """Read the flags together; `ignore_eos` asks for it also without the flag. Raises UserError."""
    if not asked.url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {asked.url}: must begin with http:// or https://")
    return BenchOptions(
        target=Target(asked.url, asked.headers(environ), asked.timeout),
        model=asked.model,
        endpoint=asked.endpoint,
        fields=asked.fields(ignore_eos),
        arrivals=_arrivals(asked),
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


def _arrivals(one: Arriving) -> Arrivals | None:
    start, end = one.ramp_up_start_rps, one.ramp_up_end_rps
    if one.ramp_up_strategy is None:
        if (start, end) != (None, None):
            raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need a --ramp-up-strategy")
        return None if one.request_rate is None else Arrivals(one.request_rate, one.burstiness)
    if start is None or end is None:
        raise UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if one.request_rate is not None:
        raise UserError("--ramp-up-strategy sets the rate: leave out --request-rate")
    return Arrivals(burstiness=one.burstiness, ramp=Ramp(one.ramp_up_strategy, start, end))


FOLDER_FLAG = "--result-dir"


def run_bench(args: argparse.Namespace) -> int:
    """Run, print and save; returns the exit code. Raises UserError."""
    asked = read_options(args, BenchFlags)
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
    return 0 if done.figures.completed else 1


def _print(done: Benchmark, what: BenchOptions) -> None:
    rate = what.arrivals.rate if what.arrivals and what.arrivals.ramp is None else math.inf
    shown = None if math.isinf(rate) else rate
    Console().print(report.make_table(done.figures, done.run.client, what.max_concurrency, shown, what.num_warmups))
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
    document |= dict(asked.metadata) | report.run_json(done.run) | report.figures_json(done.figures)
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
    if asked.ramp_up_strategy:
        rate = f"ramp-up-{asked.ramp_up_strategy}-{asked.ramp_up_start_rps:g}qps-{asked.ramp_up_end_rps:g}qps"
    concurrency = f"-concurrency{asked.max_concurrency}" if asked.max_concurrency else ""
    return f"{asked.label}-{rate}{concurrency}-{model.rpartition('/')[2]}-{date}.json"
