"""A comparison from its flags to its report: reads the plan, plays the rounds, prints and saves the results."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from math import inf
from pathlib import Path

import orjson
from rich.console import Console

from loadgen.compare.flags import CompareFlags
from loadgen.compare.machine import collect_settings, describe_machine, find_versions
from loadgen.compare.record import Comparison, Contestant, Plan, Point, Setting
from loadgen.compare.report import collect_flags, make_document, make_page, make_summary
from loadgen.compare.rounds import CompareProgress, play_rounds
from loadgen.console import table_console
from loadgen.html.plot import INSTALL, can_draw
from loadgen.result_file import PROGRAM, explain_unwritable, stoppable
from loadgen.workload import requests as workload
from loadgen.workload.flags import Workload, choose
from models.errors import INTERRUPTED, UserError
from models.files import replace_file, require_writable_folder
from models.options import read_options
from models.progress import Bars
from scheduler.assembly import find_strategies

OURS = ("--strategy", "--host", "--port", "--allow-replay", "--api-key")
"""Flags of `lengthwise serve` that the comparison sets."""
UNREACHABLE = ("--uds", "--ssl-certfile", "--ssl-keyfile")
"""Flags of `lengthwise serve` with which the comparison could not ask the server."""


def read_plan(args: argparse.Namespace, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ) -> Plan:
    """The plan that the flags make; `ignore_eos` asks for it also without the flag. Raises UserError."""
    asked = read_options(args, CompareFlags)
    contestants = _contestants(asked.strategies, asked.urls)
    if asked.model is not None and not asked.strategies:
        raise UserError(f"{asked.model}: only --strategies start servers; to ask those of --urls for it, give --model")
    return Plan(
        contestants=contestants,
        points=_points(asked.request_rates, asked.burstinesses),
        flags=asked,
        baseline=_baseline(asked.baseline, contestants),
        serve_command=_serve_command(asked.model, asked.serve_args),
        fields=asked.fields(ignore_eos),
        headers=asked.headers(environ),
    )


def _contestants(strategies: Sequence[str], urls: Sequence[tuple[str, str]]) -> tuple[Contestant, ...]:
    find_strategies(strategies)
    if len(strategies) + len(urls) < 2:
        raise UserError("there is nothing to compare: name two or more with --strategies A,B or --urls NAME=URL,...")
    names = [*_numbered(strategies), *(name for name, _ in urls)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"--urls: the name {twice[0]} is taken: choose another")
    sources = chain(((name, None) for name in strategies), ((None, url) for _, url in urls))
    return tuple(Contestant(name, strategy, url) for name, (strategy, url) in zip(names, sources, strict=True))


def _numbered(strategies: Sequence[str]) -> list[str]:
    """Names under which a strategy may come more than once."""
    seen: Counter[str] = Counter()
    names = []
    for strategy in strategies:
        seen[strategy] += 1
        names.append(strategy if seen[strategy] == 1 else f"{strategy} ({seen[strategy]})")
    return names


def _points(rates: Sequence[float] | None, burstinesses: Sequence[float]) -> tuple[Point, ...]:
    if rates is None:
        if tuple(burstinesses) != (1.0,):
            raise UserError("--burstinesses needs --request-rates")
        return (Point(),)
    finite = sorted({rate for rate in rates if rate != inf})
    at_once = [Point(inf)] if inf in rates else []  # which knows no burstiness
    return (*(Point(rate, burstiness) for burstiness in sorted(set(burstinesses)) for rate in finite), *at_once)


def _baseline(name: str | None, contestants: Sequence[Contestant]) -> str:
    names = [contestant.name for contestant in contestants]
    if name is not None and name not in names:
        raise UserError(f"--baseline {name}: choose from {', '.join(names)}")
    return name or names[0]


def _serve_command(model: str | None, serve_args: str) -> tuple[str, ...]:
    try:
        further = shlex.split(serve_args)
    except ValueError as error:
        raise UserError(f"--serve-args {serve_args!r}: {error}") from None
    for word in further:
        flag = word.partition("=")[0]
        if flag in OURS:
            raise UserError(f"--serve-args: leave {flag} out, the comparison sets it")
        if flag in UNREACHABLE:
            raise UserError(
                f"--serve-args: leave {flag} out, the comparison asks servers by HTTP on the loopback interface"
            )
    command = [*PROGRAM, "serve", *([model] if model else [])]
    return (*command, "--host", "127.0.0.1", "--port", "0", "--allow-replay", *further)


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
    seeds = [plan.find_seed(number) for number in range(1, plan.flags.rounds + 1)]
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
    if known.plays:
        _write(folder / PAGE, make_page(known, setting).encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises UserError."""
    with explain_unwritable(path.parent, "--output"), replace_file(path) as file:
        file.write(content)
