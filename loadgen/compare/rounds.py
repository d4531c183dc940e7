"""Plays the rounds of a comparison: in each, every contestant's server is started, warmed, put under every load, and
stopped before the next one. Knows no flags, no page and no scheduling.

A server's mean batch is told by the difference of its /metrics between before and after a run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from loadgen.bench.run import bench, list_errors
from loadgen.client.client import ServerError, Target
from loadgen.client.request import Prompt
from loadgen.compare.machine import hide
from loadgen.compare.record import Comparison, Contestant, Plan, Play, Point, Trouble
from loadgen.compare.server import ServerFailure, run_server
from loadgen.console import format_number
from loadgen.load import Show
from loadgen.options import BenchFlags, Sampling
from models.options import options_of
from models.progress import Bars

TIMEOUT = aiohttp.ClientTimeout(total=10)
BATCH_ROWS = "lengthwise:batch_rows"


async def read_batch_rows(target: Target) -> tuple[float, float]:
    """The sum of the rows of all batches that a server has run, and their number; nothing where it does not tell."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, headers=dict(target.headers)) as session,
            session.get(target.url("/metrics")) as response,
        ):
            families = list(text_string_to_metric_families(await response.text())) if response.status == 200 else []
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        families = []
    samples = [(sample.name, sample.value) for family in families for sample in family.samples]
    total, count = (
        sum(value for name, value in samples if name == f"{BATCH_ROWS}_{kind}") for kind in ("sum", "count")
    )
    return total, count


class CompareProgress:
    """Is notified as a comparison goes on, and shows it in bars that are entered elsewhere."""

    def __init__(self, plan: Plan, bars: Bars) -> None:
        self._plan = plan
        self._bars = bars
        self._runs = bars.begin("runs", plan.flags.rounds * len(plan.contestants) * len(plan.points))
        self._turn = ""

    def starting(self, contestant: Contestant, round: int) -> None:
        """Show that a contestant's turn begins."""
        self._turn = f"round {round} of {self._plan.flags.rounds}, {contestant.name}"
        doing = "starting the server" if contestant.strategy else f"connecting to {hide(contestant.url or '')}"
        self._runs.rename(f"runs ({self._turn}: {doing})")
        self._bars.say(f"{self._turn}: {doing}")

    @contextmanager
    def watch(self, title: str, total: int) -> Iterator[Show]:
        """Show a bar while `total` requests are sent."""
        self._runs.rename(f"runs ({self._turn})")
        bar = self._bars.begin(f"{self._turn}: {title}, {total} requests", total)
        try:
            yield lambda ended, note: bar.show(ended, note=note)
        finally:
            self._bars.remove(bar)

    def played(self, play: Play) -> None:
        """Print a line about a play that has ended."""
        self._runs.advance()
        jct = play.figure("mean_jct_ms")
        told = "" if jct is None else f", mean JCT {format_number(jct)} s"
        counts = f"{play.figures['completed']} of {play.figures['num_prompts']} requests completed"
        rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
        self._bars.say(f"{self._turn}, {play.point.label}: {counts}, {rate}{told}")

    def left_out(self, trouble: Trouble) -> None:
        """Print why a contestant will not be asked again."""
        self._bars.say(f"{trouble.contestant} is left out from round {trouble.round} on: {trouble.message}", "red")


KEYS = "LENGTHWISE_API_KEY"
"""The variable with a server's keys, which overrides those of its configuration file."""
METRICS = ("jct", "ttft", "normalized_latency", "tpot", "itl", "e2el", "client_queue_time", "queue_time")


def play_rounds(
    plan: Plan,
    prompts: Sequence[Sequence[Prompt]],
    logs: Path,
    progress: CompareProgress,
    keep: Callable[[Comparison], None],
) -> Comparison:
    """Play all rounds, or until KeyboardInterrupt; `keep` gets what is known after every turn.

    Each round has prompts of its own. Logs of servers of ours go to the folder `logs`. A fault of a contestant's server
    leaves it out from then on; the others go on. Raises UserError where no contestant is to blame.
    """
    known = Comparison(plan)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for number, contestant in plan.list_turns():
                if any(trouble.contestant == contestant.name for trouble in known.troubles):
                    continue
                turn = _Turn(runner, contestant, number, prompts[number - 1], progress)
                try:
                    for play in turn.play(plan, logs):
                        known = replace(known, plays=(*known.plays, play))
                except (ServerFailure, ServerError) as error:
                    trouble = Trouble(contestant.name, number, hide(str(error)))
                    known = replace(known, troubles=(*known.troubles, trouble))
                    progress.left_out(trouble)
                keep(known)
                if not all(play.whole for play in known.plays):
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        return replace(known, interrupted=True)
    return known


@dataclass(frozen=True, slots=True)
class _Turn:
    """One contestant's turn in a round."""

    runner: asyncio.Runner
    contestant: Contestant
    number: int
    prompts: Sequence[Prompt]
    progress: CompareProgress

    def play(self, plan: Plan, logs: Path) -> Iterator[Play]:
        """Put the contestant under all loads, or until one is interrupted. Raises ServerFailure and ServerError."""
        self.progress.starting(self.contestant, self.number)
        with _open_server(self.contestant, plan, self.number, logs) as (asked, check):
            self._warm_up(replace(asked, request_rate=inf), plan.flags.num_warmups)
            for point in plan.points:
                load = replace(asked, request_rate=point.rate, burstiness=point.burstiness)
                play = self.runner.run(self._play_load(load, point))
                check()
                self.progress.played(play)
                yield play
                if not play.whole:
                    return

    def _warm_up(self, asked: BenchFlags, count: int) -> None:
        """Send the first prompts at once, over and over if need be, without measuring; one at least must succeed."""
        first = tuple(islice(cycle(self.prompts), count))
        if not first:
            return
        done = self.runner.run(bench(asked, first, lambda _, total: self.progress.watch("warm-up", total)))
        if done.run.interrupted:
            raise KeyboardInterrupt
        if not done.figures["completed"]:
            raise ServerError(f"every warm-up request failed: {list_errors(done.run.outcomes)[0]}")

    async def _play_load(self, asked: BenchFlags, point: Point) -> Play:
        target = Target(asked.url, asked.headers())
        rows, batches = await read_batch_rows(target)
        done = await bench(asked, self.prompts, lambda _, total: self.progress.watch(point.label, total))
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
def _open_server(
    contestant: Contestant, plan: Plan, number: int, logs: Path
) -> Iterator[tuple[BenchFlags, Callable[[], None]]]:
    """The flags with which `lengthwise bench` would ask a contestant's server, and what raises where that has died."""
    flags, headers = plan.flags, tuple(plan.flags.headers().items())
    sampling: dict[str, Any] = {one.name: getattr(flags, one.name) for one in options_of(Sampling)}
    asked = BenchFlags(
        timeout=flags.timeout,
        seed=plan.find_seed(number),
        max_concurrency=flags.max_concurrency,
        num_warmups=0,
        percentile_metrics=METRICS,
        request_id_prefix="compare-",
        **sampling,
    )
    if contestant.url is not None:
        yield replace(asked, base_url=contestant.url, header=headers, model=flags.ask_model), lambda: None
        return
    name = re.sub(r"[^\w.]+", "-", contestant.name).strip("-")  # as far as any file system takes it
    # A server may be set up to want keys. Given as a variable, this one is in no list of processes. A key that was
    # asked for is each server's: lengths are learned by key, so a journal tells nothing to a new one.
    key = dict(headers).get("Authorization", "").removeprefix("Bearer ") or token_hex()
    log = logs / f"{name}-round-{number}.log"
    with run_server(plan.command(contestant), log, flags.ready_check_timeout_sec, environ={KEYS: key}) as own:
        yield replace(asked, base_url=own.url, header=(("Authorization", f"Bearer {key}"),)), own.require_alive
