"""From the flags of `lengthwise compare` to a report: reads the workload, plays the rounds, keeps what came of it."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console

from loadgen.client.request import RequestFormError
from loadgen.compare import files
from loadgen.compare.document import Setting, flags_of
from loadgen.compare.files import FolderError
from loadgen.compare.machine import machine, settings_of, versions
from loadgen.compare.options import FlagError, read_plan
from loadgen.compare.progress import CompareProgress
from loadgen.compare.record import Comparison
from loadgen.compare.rounds import play_rounds
from loadgen.compare.terminal import summary
from loadgen.load.schedule import ScheduleError
from loadgen.workload import table as workload
from loadgen.workload.table import WorkloadError

INTERRUPTED = 130
STOPPING = (signal.SIGTERM, signal.SIGHUP)


class CompareError(Exception):
    """There is nothing to report; the message is for the user."""


def run_compare(args: argparse.Namespace) -> int:
    """Play, print and save; returns the exit code. Raises CompareError."""
    started = datetime.now()
    if args.replay_lengths is None:
        # Lengths must be the same for all. Servers that are not ours do not know replayed ones.
        args.replay_lengths = not args.urls
    folder = args.output or Path(f"compare-{started:%Y%m%d-%H%M%S}")
    try:
        plan = read_plan(args, ignore_eos=workload.ignores_eos(args))
        prompts = workload.load(args)
        logs = files.prepare(folder)
        setting = _setting(args, started)
        with _stoppable():
            with CompareProgress(plan) as progress:
                done = play_rounds(plan, prompts, logs, progress, lambda known: _keep(folder, known, setting))
            _keep(folder, done, setting)
    except (WorkloadError, FlagError, FolderError, ScheduleError, RequestFormError) as error:
        raise CompareError(str(error)) from error
    return _report(done, folder)


def _setting(args: argparse.Namespace, started: datetime) -> Setting:
    return Setting(
        date=f"{started:%Y-%m-%d %H:%M:%S}",
        machine=machine(),
        versions=versions(),
        flags=flags_of(args),
        environment=settings_of(os.environ),
    )


def _keep(folder: Path, known: Comparison, setting: Setting) -> None:
    if known.plays:
        files.save(folder, known, setting)


def _report(done: Comparison, folder: Path) -> int:
    if not done.plays:
        if done.interrupted:
            return INTERRUPTED
        raise CompareError("no contestant could be played:\n" + _troubles(done))
    Console().print(summary(done))
    errors = Console(stderr=True)
    lines = [_troubles(done)] if done.troubles else []
    lines += ["interrupted: the report holds what ran until then"] if done.interrupted else []
    for line in (*lines, f"saved {folder / files.PAGE} and {folder / files.DATA}"):
        errors.print(line, markup=False, highlight=False, soft_wrap=True)
    if done.interrupted:
        return INTERRUPTED
    return 1 if done.troubles else 0


def _troubles(done: Comparison) -> str:
    return "\n".join(f"{one.contestant}, round {one.round}: {one.message}" for one in done.troubles)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Whatever asks this process to leave does what Ctrl-C does, so that no server outlives it.

    SIGINT too: a shell that starts a program in the background has it ignored, and Python then leaves it so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *STOPPING)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in STOPPING:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
