"""A comparison from its flags to its report: plans it, plays the rounds, prints and saves the results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from pathlib import Path

import orjson

from loadgen.compare.machine import collect_settings, describe_machine, find_versions
from loadgen.compare.record import Comparison, Contestant, Point, Setting
from loadgen.compare.report import collect_flags, make_document, make_page, make_summary
from loadgen.compare.rounds import play_rounds
from loadgen.console import table_console
from loadgen.options import CompareFlags
from loadgen.plot import INSTALL, can_draw
from loadgen.result_file import PROGRAM, explain_unwritable, stoppable
from loadgen.workload import requests as workload
from models.errors import INTERRUPTED, UserError
from models.files import replace_file, require_writable_folder
from models.progress import Bars
from scheduler.assembly import find_strategies

OURS = ("--strategy", "--host", "--port", "--allow-replay", "--api-key")
"""Flags of `lengthwise serve` that the comparison sets."""
UNREACHABLE = ("--uds", "--ssl-certfile", "--ssl-keyfile")
"""Flags of `lengthwise serve` with which the comparison could not ask the server."""


def plan(asked: CompareFlags) -> Comparison:
    """The comparison that the flags ask for, before its first run. Raises UserError."""
    contestants = _contestants(asked)
    if asked.model is not None and not asked.strategies:
        raise UserError(f"{asked.model}: only --strategies start servers; to ask those of --urls for it, give --model")
    return Comparison(asked, contestants, _points(asked.request_rates, asked.burstinesses))


def _contestants(asked: CompareFlags) -> tuple[Contestant, ...]:
    find_strategies(asked.strategies)
    if len(asked.strategies) + len(asked.urls) < 2:
        raise UserError("there is nothing to compare: name two or more with --strategies A,B or --urls NAME=URL,...")
    found: dict[str, Contestant] = {}
    for place, strategy in enumerate(asked.strategies):
        before = asked.strategies[:place].count(strategy)
        name = f"{strategy} ({before + 1})" if before else strategy
        found[name] = Contestant(name, strategy, _serve_command(asked.model, asked.serve_args, strategy))
    for name, url in asked.urls:
        if name in found:
            raise UserError(f"--urls: the name {name} is taken: choose another")
        found[name] = Contestant(name, url=url)
    return tuple(found.values())


def _points(rates: Sequence[float] | None, burstinesses: Sequence[float]) -> tuple[Point, ...]:
    if rates is None:
        if tuple(burstinesses) != (1.0,):
            raise UserError("--burstinesses needs --request-rates")
        return (Point(),)
    finite = sorted({rate for rate in rates if rate != inf})
    at_once = [Point(inf)] if inf in rates else []  # which knows no burstiness
    return (*(Point(rate, burstiness) for burstiness in sorted(set(burstinesses)) for rate in finite), *at_once)


def _serve_command(model: str | None, serve_args: str, strategy: str) -> str:
    try:
        further = shlex.split(serve_args)
    except ValueError as error:
        raise UserError(f"--serve-args {serve_args!r}: {error}") from None
    for word in further:
        flag = word.partition("=")[0]
        if flag in (*OURS, *UNREACHABLE):
            does = "sets it" if flag in OURS else "asks servers by HTTP on the loopback interface"
            raise UserError(f"--serve-args: leave {flag} out, the comparison {does}")
    command = [*PROGRAM, "serve", *([model] if model else [])]
    return shlex.join(
        (*command, "--host", "127.0.0.1", "--port", "0", "--allow-replay", *further, "--strategy", strategy)
    )


PAGE, DATA, LOGS = "report.html", "report.json", "logs"
"""Files in the folder of a comparison, and the folder in it for the logs of the servers that it starts."""


def run_compare(asked: CompareFlags) -> int:
    """Play, print and save; returns the exit code. Raises UserError."""
    started = datetime.now()
    if asked.replay_lengths is None:
        # Lengths must be the same for all. Servers that are not ours do not know replayed ones.
        asked = replace(asked, replay_lengths=not asked.urls)
    folder = asked.output or Path(f"compare-{started:%Y%m%d-%H%M%S}")
    planned = plan(replace(asked, ignore_eos=asked.ignore_eos or workload.ignores_eos(asked)))
    prompts = [workload.load(asked, asked.num_prompts, asked.seed + round) for round in range(asked.rounds)]
    _prepare(folder)
    draws = can_draw()
    if not draws:
        print(f"no {PAGE}, which needs {INSTALL}: the figures go to {DATA} and to the terminal", file=sys.stderr)
    setting = Setting(
        date=f"{started:%Y-%m-%d %H:%M:%S}",
        machine=describe_machine(),
        versions=find_versions(),
        flags=collect_flags(asked),
        environment=collect_settings(os.environ),
    )

    def save(known: Comparison) -> None:
        if known.plays:
            document = make_document(known, setting)
            _write(folder / DATA, orjson.dumps(document, option=orjson.OPT_INDENT_2))

    with stoppable():
        with Bars(threaded=True, latest_only=True) as bars:
            done = play_rounds(planned, prompts, folder / LOGS, bars, save)
        save(done)
        if draws and done.plays:
            _write(folder / PAGE, make_page(done, setting).encode())
    return _report(done, [folder / PAGE, folder / DATA] if draws else [folder / DATA])


def _report(done: Comparison, files: list[Path]) -> int:
    """Print the results; returns the exit code. Raises UserError when there are none."""
    troubles = [f"{one.contestant}, round {one.round}: {one.message}" for one in done.troubles]
    if not done.plays and not done.interrupted:
        raise UserError("\n".join(("no contestant could be played:", *troubles)))
    if done.plays:
        table_console().print(make_summary(done))
        stopped = ["interrupted: the report holds what ran until then"] if done.interrupted else []
        print(*troubles, *stopped, f"saved {' and '.join(map(str, files))}", sep="\n", file=sys.stderr)
    return INTERRUPTED if done.interrupted else int(bool(troubles))


def _prepare(folder: Path) -> None:
    """Make sure before a long run that its report can be written. Raises UserError."""
    if (folder / DATA).exists():
        raise UserError(f"{folder / DATA} exists already: choose another folder with --output")
    with explain_unwritable(folder, "--output"):
        require_writable_folder(folder / LOGS)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises UserError."""
    with explain_unwritable(path.parent, "--output"), replace_file(path) as file:
        file.write(content)
