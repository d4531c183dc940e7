"""A comparison: in each round every contestant's server is started, warmed, loaded and stopped."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from secrets import token_hex

import aiohttp
import orjson
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from loadgen.bench.run import bench, list_errors, warm_up
from loadgen.client.client import ServerError, Target
from loadgen.client.request import LoadPrompt
from loadgen.compare.machine import collect_settings, describe_machine, find_versions, hide
from loadgen.compare.record import CompareSetting, Comparison, Contestant, LoadPoint, Play, Trouble, plan
from loadgen.compare.report import collect_flags, make_document, make_page, make_summary
from loadgen.compare.server import ServerFailure, run_server
from loadgen.console import format_number, table_console
from loadgen.load import Show
from loadgen.options import AccessFlags, BenchFlags, CompareFlags, RequestFlags, Sampling
from loadgen.plot import INSTALL, can_draw
from loadgen.result_file import explain_unwritable
from loadgen.turns import take_turns
from loadgen.workload import requests as workload
from models.errors import INTERRUPTED, UserError
from models.files import replace_file, require_writable_folder
from models.options import values_of
from models.progress import Bars
from models.signals import stoppable

PAGE, DATA, LOGS = "report.html", "report.json", "logs"


def run_compare(asked: CompareFlags) -> int:
    """Raises UserError."""
    started = datetime.now()
    if asked.replay_lengths is None:
        # lengths must be alike, and foreign servers replay none
        asked = replace(asked, replay_lengths=not asked.urls)
    folder = asked.output or Path(f"compare-{started:%Y%m%d-%H%M%S}")
    planned = plan(replace(asked, ignore_eos=asked.ignore_eos or workload.ignores_eos(asked)))
    prompts = [workload.load(asked, asked.num_prompts, asked.seed + round) for round in range(asked.rounds)]
    _prepare(folder)
    if not (draws := can_draw()):
        print(f"no {PAGE}, which needs {INSTALL}: the figures go to {DATA} and to the terminal", file=sys.stderr)
    setting = CompareSetting(
        date=f"{started:%Y-%m-%d %H:%M:%S}",
        machine=describe_machine(),
        versions=find_versions(),
        flags=collect_flags(asked),
        environment=collect_settings(os.environ),
    )

    with stoppable():
        with Bars(threaded=True, latest_only=True) as bars:
            for done in play_rounds(planned, prompts, folder / LOGS, bars):
                if done.plays:
                    _write(folder / DATA, orjson.dumps(make_document(done, setting), option=orjson.OPT_INDENT_2))
        if draws and done.plays:
            _write(folder / PAGE, make_page(done, setting).encode())
    return _report(done, [folder / PAGE, folder / DATA] if draws else [folder / DATA])


def _report(done: Comparison, files: list[Path]) -> int:
    troubles = [f"{one.contestant}, round {one.round}: {one.message}" for one in done.troubles]
    if not done.plays and not done.interrupted:
        raise UserError("\n".join(("no contestant could be played:", *troubles)))
    if done.plays:
        table_console().print(make_summary(done))
        stopped = ["interrupted: the report holds what ran until then"] if done.interrupted else []
        print(*troubles, *stopped, f"saved {' and '.join(map(str, files))}", sep="\n", file=sys.stderr)
    return INTERRUPTED if done.interrupted else int(bool(troubles))


def _prepare(folder: Path) -> None:
    """Check before a long run that the report can be written."""
    if (folder / DATA).exists():
        raise UserError(f"{folder / DATA} exists already: choose another folder with --output")
    with explain_unwritable(folder, "--output"):
        require_writable_folder(folder / LOGS)


def _write(path: Path, content: bytes) -> None:
    with explain_unwritable(path.parent, "--output"), replace_file(path) as file:
        file.write(content)


BATCH_ROWS = "lengthwise:batch_rows"


async def read_batch_rows(target: Target) -> tuple[float, float]:
    """Sum of rows and number of batches so far."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10), headers=dict(target.headers)) as session,
            session.get(target.url("/metrics")) as response,
        ):
            text = await response.text() if response.status == 200 else ""
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        found = []
    total, count = (sum(one.value for one in found if one.name == f"{BATCH_ROWS}_{kind}") for kind in ("sum", "count"))
    return total, count


METRICS = ("jct", "ttft", "normalized_latency", "tpot", "itl", "e2el", "client_queue_time", "queue_time")


def play_rounds(
    plan: Comparison, prompts: Sequence[Sequence[LoadPrompt]], logs: Path, bars: Bars
) -> Iterator[Comparison]:
    """Yields after every turn, until KeyboardInterrupt. A faulty contestant is left out from then on. Raises UserError
    where none is to blame.
    """
    known = plan
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for number, contestant in take_turns(plan.contestants, plan.flags.rounds):
                if any(trouble.contestant == contestant.name for trouble in known.troubles):
                    continue
                turn = _Turn(runner, plan.flags, contestant, number + 1, prompts[number], bars)
                try:
                    for play in turn.play(plan.points, logs):
                        known = replace(known, plays=(*known.plays, play))
                except (ServerFailure, ServerError) as error:
                    trouble = Trouble(contestant.name, number + 1, hide(str(error)))
                    known = replace(known, troubles=(*known.troubles, trouble))
                    bars.say(f"{contestant.name} is left out from round {trouble.round} on: {trouble.message}", "red")
                yield known
                if not all(play.whole for play in known.plays):
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        yield replace(known, interrupted=True)


@dataclass(frozen=True, slots=True)
class _Turn:
    runner: asyncio.Runner
    flags: CompareFlags
    contestant: Contestant
    number: int
    prompts: Sequence[LoadPrompt]
    bars: Bars

    @property
    def title(self) -> str:
        return f"round {self.number} of {self.flags.rounds}, {self.contestant.name}"

    def play(self, points: Sequence[LoadPoint], logs: Path) -> Iterator[Play]:
        """Under all loads, or until interrupted. Raises ServerFailure and ServerError."""
        url = self.contestant.url
        self.bars.say(f"{self.title}: {'starting the server' if url is None else f'connecting to {hide(url)}'}")
        with self._open_server(logs) as (asked, check):
            self.runner.run(warm_up(asked, self.prompts, self._show))
            for point in points:
                play = self.runner.run(self._play_load(asked, point))
                check()
                jct = play.figure("mean_jct_ms")
                counts = f"{play.figures['completed']} of {play.figures['num_prompts']} requests completed"
                rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
                told = "" if jct is None else f", mean JCT {format_number(jct)} s"
                self.bars.say(f"{self.title}, {point.label}: {counts}, {rate}{told}")
                yield play
                if not play.whole:
                    return

    def _show(self, title: str, total: int) -> Show:
        return self.bars.watch(f"{self.title}: {title}, {total} requests", total)

    async def _play_load(self, asked: BenchFlags, point: LoadPoint) -> Play:
        load = replace(asked, num_warmups=0, request_rate=point.rate, burstiness=point.burstiness)
        target = Target(asked.url, asked.headers())
        rows, batches = await read_batch_rows(target)
        done = await bench(load, self.prompts, lambda _, total: self._show(point.label, total))
        told: dict[str, float] = {}
        if not done.run.interrupted:  # else its figures do not count
            total, count = await read_batch_rows(target)
            told = {"server_mean_batch_rows": (total - rows) / (count - batches)} if count > batches else {}
        completed = [one for one in done.run.outcomes if one.completed]
        return Play(
            contestant=self.contestant.name,
            round=self.number,
            point=point,
            figures={"model": done.model} | done.figures | told,
            latencies=tuple(sorted(one.end - one.scheduled for one in completed)),
            errors=tuple(map(hide, list_errors(done.run.outcomes))),
        )

    @contextmanager
    def _open_server(self, logs: Path) -> Iterator[tuple[BenchFlags, Callable[[], None]]]:
        """The flags with which `bench` asks the server, and a check that it lives."""
        flags, contestant = self.flags, self.contestant
        shared = values_of(flags, AccessFlags, RequestFlags, Sampling) | {"seed": flags.seed + self.number - 1}
        asked = BenchFlags(**shared, percentile_metrics=METRICS, request_id_prefix="compare-")
        if contestant.command is None:
            yield replace(asked, base_url=contestant.url, model=flags.ask_model), lambda: None
            return
        name = re.sub(r"[^\w.]+", "-", contestant.name).strip("-")  # valid on any file system
        # servers may want keys; as a variable, a key shows in no process list. Lengths are learned by key, so a key
        # that was
        # asked for is each server's
        key = flags.headers().get("Authorization", "").removeprefix("Bearer ") or token_hex()
        command, log = shlex.split(contestant.command), logs / f"{name}-round-{self.number}.log"
        with run_server(command, log, flags.ready_check_timeout_sec, LENGTHWISE_API_KEY=key) as own:
            yield replace(asked, base_url=own.url, header=(("Authorization", f"Bearer {key}"),)), own.require_alive
