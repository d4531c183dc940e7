"""A comparison from its flags to its report: reads the workload, plays the rounds, prints and saves the results."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import orjson
from rich.console import Console

from loadgen.compare.machine import collect_settings, describe_machine, find_versions
from loadgen.compare.options import read_plan
from loadgen.compare.record import Comparison, Setting
from loadgen.compare.report.document import collect_flags, make_document
from loadgen.compare.report.notes import make_summary
from loadgen.compare.rounds import CompareProgress, play_rounds
from loadgen.console import table_console
from loadgen.html.plot import INSTALL, can_draw
from loadgen.program import stoppable
from loadgen.result_file import explain_unwritable
from loadgen.workload import table as workload
from loadgen.workload.flags import Workload, choose
from models.errors import INTERRUPTED, UserError
from models.files import replace_file, require_writable_folder
from models.flags import read_options
from models.progress import Bars

PAGE, DATA, LOGS = "report.html", "report.json", "logs"
"""Files in the folder of a comparison, and the folder in it for the logs of the servers that it starts."""


def run_compare(args: argparse.Namespace) -> int:
    """Play, print and save; returns the exit code. Raises UserError."""
    started = datetime.now()
    if args.replay_lengths is None:
        # Lengths must be the same for all. Servers that are not ours do not know replayed ones.
        args.replay_lengths = not args.urls
    folder = args.output or Path(f"compare-{started:%Y%m%d-%H%M%S}")
    choice = choose(read_options(args, Workload), args.num_prompts)
    plan = read_plan(args, ignore_eos=workload.ignores_eos(choice))
    seeds = [plan.find_seed(number) for number in range(1, plan.rounds + 1)]
    prompts = [workload.load(replace(choice, seed=seed)) for seed in seeds]
    _prepare(folder)
    draws = can_draw()
    if not draws:
        _print_error(f"no {PAGE}, which needs {INSTALL}: the figures go to {DATA} and to the terminal")
    setting = _read_setting(args, started)
    with stoppable():
        with Bars(threaded=True) as bars:
            progress = CompareProgress(plan, bars)
            done = play_rounds(plan, prompts, folder / LOGS, progress, lambda now: _save_data(folder, now, setting))
        _save_data(folder, done, setting)
        if draws:
            _save_page(folder, done, setting)
    return _report(done, [folder / PAGE, folder / DATA] if draws else [folder / DATA])


def _read_setting(args: argparse.Namespace, started: datetime) -> Setting:
    return Setting(
        date=f"{started:%Y-%m-%d %H:%M:%S}",
        machine=describe_machine(),
        versions=find_versions(),
        flags=collect_flags(args),
        environment=collect_settings(os.environ),
    )


def _report(done: Comparison, files: list[Path]) -> int:
    """Print the results; returns the exit code. Raises UserError when there are none."""
    troubles = "\n".join(f"{one.contestant}, round {one.round}: {one.message}" for one in done.troubles)
    if not done.plays:
        if done.interrupted:
            return INTERRUPTED
        raise UserError(f"no contestant could be played:\n{troubles}")
    table_console().print(make_summary(done))
    if troubles:
        _print_error(troubles)
    if done.interrupted:
        _print_error("interrupted: the report holds what ran until then")
    _print_error(f"saved {' and '.join(map(str, files))}")
    if done.interrupted:
        return INTERRUPTED
    return 1 if done.troubles else 0


def _print_error(line: str) -> None:
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


# The folder


def _prepare(folder: Path) -> None:
    """Make sure before a long run that its report can be written. Raises UserError."""
    if (folder / DATA).exists():
        raise UserError(f"{folder / DATA} exists already: choose another folder with --output")
    with explain_unwritable(folder, "--output"):
        require_writable_folder(folder / LOGS)


def _save_data(folder: Path, known: Comparison, setting: Setting) -> None:
    if known.plays:
        _write(folder / DATA, orjson.dumps(make_document(known, setting), option=orjson.OPT_INDENT_2))


def _save_page(folder: Path, known: Comparison, setting: Setting) -> None:
    from loadgen.compare.report.page import make_page  # Jinja2, and what draws plots

    if known.plays:
        _write(folder / PAGE, make_page(known, setting).encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises UserError."""
    with explain_unwritable(path.parent, "--output"), replace_file(path) as file:
        file.write(content)
