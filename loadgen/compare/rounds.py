"""Plays the rounds of a comparison: in each, every contestant's server is started, warmed, put under every load, and
stopped before the next one. Knows no flags, no page and no scheduling.

Figures of a server are the difference of its /metrics between before and after a run.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TypeAlias

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from loadgen.bench.report import client_json, list_errors, run_json
from loadgen.bench.run import Benchmark, BenchOptions, bench
from loadgen.client.client import ServerError, Target
from loadgen.client.request import Prompt
from loadgen.compare.machine import hide
from loadgen.compare.record import Comparison, Contestant, Plan, Play, Point, Trouble
from loadgen.compare.server import OwnServer, ServerFailure, run_server
from loadgen.console import format_number
from loadgen.load.load import Observer, RequestBar
from loadgen.load.schedule import Arrivals
from models.progress import Bars

Samples: TypeAlias = Mapping[tuple[str, str], float]
"""A sample's name and its `executor` label -> its value, summed over all other labels."""

NOTHING: Samples = MappingProxyType({})
TIMEOUT = aiohttp.ClientTimeout(total=10)
BATCH_ROWS = "lengthwise:batch_rows"
ERROR = "lengthwise:predicted_length_error_tokens"
COUNTERS = MappingProxyType(
    {
        "server_pad_tokens": "lengthwise:pad_tokens_total",
        "server_invalid_tokens": "lengthwise:invalid_tokens_total",
    }
)
BUSY = ("lengthwise:executor_busy_seconds_total", "lengthwise:executor_busy_seconds")


async def scrape(target: Target) -> Samples:
    """The samples that the server tells now; none where it has no /metrics."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, headers=dict(target.headers)) as session,
            session.get(target.url("/metrics")) as response,
        ):
            return parse(await response.text()) if response.status == 200 else NOTHING
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return NOTHING


def parse(text: str) -> Samples:
    """Samples of the Prometheus text format. Raises ValueError when it is none."""
    samples: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("executor", ""))
            samples[key] = samples.get(key, 0.0) + sample.value
    return samples


def compute_figures(before: Samples, after: Samples) -> dict[str, float]:
    """Figures of what happened between two scrapes, as far as the server tells them."""
    names = {name for name, _ in after}
    found = {
        key: sum(_find_rises(before, after, counter).values()) for key, counter in COUNTERS.items() if counter in names
    }
    for key, histogram in (
        ("server_mean_batch_rows", BATCH_ROWS),
        ("server_mean_prediction_error_tokens", ERROR),
    ):
        count = sum(_find_rises(before, after, f"{histogram}_count").values())
        if count > 0:
            found[key] = sum(_find_rises(before, after, f"{histogram}_sum").values()) / count
    busy = next((changes for name in BUSY if len(changes := _find_rises(before, after, name)) > 1), None)
    if busy is not None:  # one executor alone cannot be out of balance
        found["server_load_imbalance_s"] = statistics.pstdev(busy.values())
    return found


def _find_rises(before: Samples, after: Samples, name: str) -> dict[str, float]:
    """The rise of a counter, by executor."""
    return {
        executor: value - before.get((name, executor), 0.0)
        for (own_name, executor), value in after.items()
        if own_name == name
    }


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
    def watch(self, title: str, total: int) -> Iterator[Observer]:
        """Show a bar while `total` requests are sent."""
        self._runs.rename(f"runs ({self._turn})")
        bar = self._bars.begin(f"{self._turn}: {title}, {total} requests", total)
        try:
            yield RequestBar(bar)
        finally:
            self._bars.remove(bar)

    def played(self, play: Play) -> None:
        """Print a line about a play that has ended."""
        self._runs.advance()
        jct = play.figure("mean_jct_ms")
        told = "" if jct is None else f", mean JCT {format_number(jct / 1000)} s"
        counts = f"{play.figure('completed'):g} of {play.figure('num_prompts'):g} requests completed"
        rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
        self._bars.say(f"{self._turn}, {play.point.label}: {counts}, {rate}{told}")

    def left_out(self, trouble: Trouble) -> None:
        """Print why a contestant will not be asked again."""
        self._bars.say(f"{trouble.contestant} is left out from round {trouble.round} on: {trouble.message}", "red")


KEYS = "LENGTHWISE_API_KEY"
"""The variable with a server's keys, which overrides those of its configuration file."""
METRICS = ("jct", "ttft", "normalized_latency", "tpot", "itl", "e2el", "client_queue_time", "queue_time")
PERCENTILES = (90.0, 95.0, 99.0)


def play_rounds(
    plan: Plan,
    prompts: Sequence[Sequence[Prompt]],
    logs: Path,
    progress: CompareProgress,
    keep: Callable[[Comparison], None],
) -> Comparison:
    """Play all rounds, or until KeyboardInterrupt; `keep` gets what is known after every turn.

    Each round has prompts of its own. Logs of servers of ours go to the folder `logs`. Raises UserError where no
    contestant is to blame.
    """
    rounds = _Rounds(Comparison(plan), prompts, logs, progress)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for number, contestant in plan.list_turns():
                if not rounds.is_left_out(contestant):
                    rounds.play_turn(runner, number, contestant)
                    keep(rounds.comparison)
    except KeyboardInterrupt:
        rounds.comparison = replace(rounds.comparison, interrupted=True)
    return rounds.comparison


@dataclass(slots=True)
class _Rounds:
    """A comparison while it goes on."""

    comparison: Comparison
    prompts: Sequence[Sequence[Prompt]]
    """Those of each round."""
    logs: Path
    progress: CompareProgress

    def is_left_out(self, contestant: Contestant) -> bool:
        return any(trouble.contestant == contestant.name for trouble in self.comparison.troubles)

    def play_turn(self, runner: asyncio.Runner, number: int, contestant: Contestant) -> None:
        """Put one contestant under all loads. A fault of its server leaves it out from then on; the others go on."""
        self.progress.starting(contestant, number)
        try:
            with _open_server(contestant, self.comparison.plan, self.logs / _name_log(contestant, number)) as (
                target,
                own,
            ):
                self._warm_up(runner, contestant, target, number)
                for point in self.comparison.plan.points:
                    play = runner.run(self._play_load(contestant, target, number, point))
                    if own is not None:
                        own.require_alive()
                    self.comparison = replace(self.comparison, plays=(*self.comparison.plays, play))
                    self.progress.played(play)
                    if not play.whole:
                        raise KeyboardInterrupt
        except (ServerFailure, ServerError) as error:
            trouble = Trouble(contestant.name, number, hide(str(error)))
            self.comparison = replace(self.comparison, troubles=(*self.comparison.troubles, trouble))
            self.progress.left_out(trouble)

    def _warm_up(self, runner: asyncio.Runner, contestant: Contestant, target: Target, number: int) -> None:
        """Send the first prompts at once, over and over if need be, without measuring; one at least must succeed."""
        first = tuple(islice(cycle(self.prompts[number - 1]), self.comparison.plan.flags.num_warmups))
        if not first:
            return
        options = _make_options(self.comparison.plan, contestant, target, number, Point(rate=float("inf")))
        done = runner.run(bench(options, first, lambda _, total: self.progress.watch("warm-up", total)))
        if done.run.interrupted:
            raise KeyboardInterrupt
        if not done.figures["completed"]:
            raise ServerError(f"every warm-up request failed: {list_errors(done.run.outcomes)[0]}")

    async def _play_load(self, contestant: Contestant, target: Target, number: int, point: Point) -> Play:
        before = await scrape(target)
        options = _make_options(self.comparison.plan, contestant, target, number, point)
        done = await bench(options, self.prompts[number - 1], lambda _, total: self.progress.watch(point.label, total))
        # A run that was interrupted does not count, so its figures are not worth waiting for.
        told = {} if done.run.interrupted else compute_figures(before, await scrape(target))
        return Play(
            contestant=contestant.name,
            round=number,
            point=point,
            figures=_collect_figures(done) | told,
            latencies=tuple(sorted(one.end - one.scheduled for one in done.run.outcomes if one.completed)),
            predictions=tuple(
                (one.predicted_tokens, one.output_tokens)
                for one in done.run.outcomes
                if one.completed and one.predicted_tokens is not None
            ),
            errors=tuple(map(hide, list_errors(done.run.outcomes))),
        )


def _name_log(contestant: Contestant, round: int) -> str:
    """The name of a log, with a contestant's name as far as any file system takes it."""
    name = re.sub(r"[^\w.]+", "-", contestant.name).strip("-")
    return f"{name}-round-{round}.log"


@contextmanager
def _open_server(contestant: Contestant, plan: Plan, log: Path) -> Iterator[tuple[Target, OwnServer | None]]:
    """The address of a contestant, and its process if it is ours."""
    if contestant.url is not None:
        yield Target(contestant.url, plan.headers, plan.flags.timeout), None
        return
    # A server may be set up to want keys. Given as a variable, this one is in no list of processes. A key that was
    # asked for is each server's: lengths are learned by key, so a journal tells nothing to a new one.
    key = plan.headers.get("Authorization", "").removeprefix("Bearer ") or token_hex()
    with run_server(plan.command(contestant), log, plan.flags.ready_check_timeout_sec, environ={KEYS: key}) as own:
        yield Target(own.url, {"Authorization": f"Bearer {key}"}, plan.flags.timeout), own


def _collect_figures(done: Benchmark) -> dict[str, object]:
    return {"model": done.model} | run_json(done.run) | done.figures | client_json(done.run.client)


def _make_options(plan: Plan, contestant: Contestant, target: Target, number: int, point: Point) -> BenchOptions:
    return BenchOptions(
        target=target,
        model=plan.flags.ask_model if contestant.url else None,
        fields=plan.fields,
        arrivals=None if point.rate is None else Arrivals(point.rate, point.burstiness),
        seed=plan.find_seed(number),
        max_concurrency=plan.flags.max_concurrency,
        num_warmups=0,
        metrics=METRICS,
        percentiles=PERCENTILES,
        id_prefix="compare-",
    )
