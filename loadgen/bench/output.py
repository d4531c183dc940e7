"""Carries out `lengthwise bench`: from its flags to a table on the screen and a JSON file."""

from __future__ import annotations

import argparse
import asyncio
import math
from datetime import datetime
from pathlib import Path

import uvloop
from rich.console import Console

from loadgen.bench import report, result
from loadgen.bench.flags import Arriving, BenchFlags
from loadgen.bench.options import options
from loadgen.bench.run import Benchmark, BenchOptions, bench
from loadgen.load.progress import show_run
from loadgen.result_file import explain_unwritable, save_json
from loadgen.workload import table as workload
from loadgen.workload.conversations import join_turns
from loadgen.workload.flags import choose
from models.errors import INTERRUPTED
from models.files import require_writable_folder
from models.flags import read_options
from models.options import options_of

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
    document |= dict(asked.metadata) | result.run_json(done.run) | result.figures_json(done.figures)
    document |= result.client_json(done.run.client)
    if asked.save_detailed:
        document |= result.details_json(done.run.outcomes)
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
