"""Plays the rounds of a comparison: in each, every contestant's server is readied, warmed, put under every load, and
let go before the next one's is. Knows no flags, no page, and how a server is scheduled least of all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import uvloop

from loadgen.bench.report import error_lines
from loadgen.bench.result import client_json, figures_json, run_json
from loadgen.bench.run import Benchmark, BenchOptions, bench
from loadgen.client.client import ServerError, Target
from loadgen.client.prompt import Prompt
from loadgen.compare.machine import theft
from loadgen.compare.own_server import OwnServer, ServerFailure, own_server
from loadgen.compare.plan import Contestant, Plan, Point
from loadgen.compare.record import Comparison, Play, Trouble
from loadgen.compare.secrets import hide
from loadgen.compare.server_figures import figures as server_figures
from loadgen.compare.server_figures import scrape
from loadgen.load.arrivals import Arrivals
from loadgen.load.load import Observer

KEYS = "LENGTHWISE_API_KEY"
"""The variable with a server's keys, which wins over those of its configuration file."""
METRICS = ("jct", "ttft", "normalized_latency", "tpot", "itl", "e2el", "client_queue_time", "queue_time")
PERCENTILES = (90.0, 95.0, 99.0)


class Watcher(Protocol):
    """Is told how a comparison goes on."""

    def starting(self, contestant: Contestant, round: int) -> None:
        """A contestant's turn begins."""
        ...

    def watch(self, title: str, total: int) -> AbstractContextManager[Observer]:
        """Requests are sent: `total` of them."""
        ...

    def played(self, play: Play) -> None:
        """A play has ended."""
        ...

    def left_out(self, trouble: Trouble) -> None:
        """A contestant will not be asked again."""
        ...


def play_rounds(
    plan: Plan, prompts: Sequence[Prompt], logs: Path, watcher: Watcher, keep: Callable[[Comparison], None]
) -> Comparison:
    """Play all rounds, or until KeyboardInterrupt; `keep` gets what is known after every turn.

    Logs of servers of ours go to the folder `logs`. Raises what cannot be blamed on one contestant: ScheduleError,
    RequestFormError.
    """
    book = _Book(Comparison(plan), watcher)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for number, contestant in plan.turns():
                if not book.is_out(contestant):
                    _turn(book, runner, number, contestant, prompts, logs)
                    keep(book.comparison)
    except KeyboardInterrupt:
        book.comparison = replace(book.comparison, interrupted=True)
    return book.comparison


class _Book:
    """What is known so far."""

    def __init__(self, comparison: Comparison, watcher: Watcher) -> None:
        self.comparison = comparison
        self.watcher = watcher

    @property
    def plan(self) -> Plan:
        return self.comparison.plan

    def is_out(self, contestant: Contestant) -> bool:
        return any(trouble.contestant == contestant.name for trouble in self.comparison.troubles)

    def add(self, play: Play) -> None:
        self.comparison = replace(self.comparison, plays=(*self.comparison.plays, play))
        self.watcher.played(play)

    def leave_out(self, trouble: Trouble) -> None:
        self.comparison = replace(self.comparison, troubles=(*self.comparison.troubles, trouble))
        self.watcher.left_out(trouble)


def _turn(
    book: _Book, runner: asyncio.Runner, number: int, contestant: Contestant, prompts: Sequence[Prompt], logs: Path
) -> None:
    """All loads on one contestant. What is wrong with its server puts it out; the others go on."""
    book.watcher.starting(contestant, number)
    try:
        with _server(contestant, book.plan, logs / _log_name(contestant, number)) as (target, own):
            _warm_up(book, runner, contestant, target, prompts)
            for point in book.plan.points:
                play = runner.run(_play(book, contestant, target, number, point, prompts))
                if own is not None:
                    own.require_alive()
                book.add(play)
                if not play.whole:
                    raise KeyboardInterrupt
    except (ServerFailure, ServerError) as error:
        book.leave_out(Trouble(contestant.name, number, hide(str(error))))


def _log_name(contestant: Contestant, round: int) -> str:
    """Of a strategy's name, what any file system takes."""
    name = re.sub(r"[^\w.]+", "-", contestant.name).strip("-")
    return f"{name}-round-{round}.log"


@contextmanager
def _server(contestant: Contestant, plan: Plan, log: Path) -> Iterator[tuple[Target, OwnServer | None]]:
    """Where the contestant is, and its process if it is ours."""
    if contestant.url is not None:
        yield Target(contestant.url, plan.headers, plan.timeout), None
        return
    # A server may want keys, whose source is its own business. As a variable, this one is in no list of processes.
    key = token_hex()
    with own_server(plan.command(contestant), log, plan.ready_timeout, environ={KEYS: key}) as own:
        yield Target(own.url, {"Authorization": f"Bearer {key}"}, plan.timeout), own


def _warm_up(
    book: _Book, runner: asyncio.Runner, contestant: Contestant, target: Target, prompts: Sequence[Prompt]
) -> None:
    """The first prompts all at once, over and over if need be, measured by nobody; one at least must succeed."""
    first = tuple(islice(cycle(prompts), book.plan.num_warmups))
    if not first:
        return
    options = _options(book.plan, contestant, target, Point(rate=float("inf")))
    done = runner.run(bench(options, first, lambda _, total: book.watcher.watch("warm-up", total)))
    if done.run.interrupted:
        raise KeyboardInterrupt
    if not done.figures.completed:
        raise ServerError(f"every warm-up request failed: {error_lines(done.run.outcomes)[0]}")


async def _play(
    book: _Book, contestant: Contestant, target: Target, number: int, point: Point, prompts: Sequence[Prompt]
) -> Play:
    before, stolen = await scrape(target), theft()
    options = _options(book.plan, contestant, target, point)
    done = await bench(options, prompts, lambda _, total: book.watcher.watch(point.label, total))
    taken = {"stolen_share": stolen()}
    # Whoever stops the run should not have to wait for figures of it that count for nothing.
    told = {} if done.run.interrupted else server_figures(before, await scrape(target))
    return Play(
        contestant=contestant.name,
        round=number,
        point=point,
        figures=_figures(done) | taken | told,
        latencies=tuple(sorted(one.end - one.scheduled for one in done.run.outcomes if one.completed)),
        predictions=tuple(
            (one.predicted_tokens, one.output_tokens)
            for one in done.run.outcomes
            if one.completed and one.predicted_tokens is not None
        ),
        errors=tuple(map(hide, error_lines(done.run.outcomes))),
    )


def _figures(done: Benchmark) -> dict[str, object]:
    setting = {"model": done.model}
    return setting | run_json(done.run) | figures_json(done.figures) | client_json(done.run.client)


def _options(plan: Plan, contestant: Contestant, target: Target, point: Point) -> BenchOptions:
    return BenchOptions(
        target=target,
        model=plan.model if contestant.url else None,
        fields=plan.fields,
        arrivals=None if point.rate is None else Arrivals(point.rate, point.burstiness),
        seed=plan.seed,
        max_concurrency=plan.max_concurrency,
        num_warmups=0,
        metrics=METRICS,
        percentiles=PERCENTILES,
        id_prefix="compare-",
    )
