"""A course on executors that are there and take real time: the same record, and the same figures, as of a simulation.

Starts no executor and loads nothing; it sees executors as the scheduler does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from engine.messages import Report, StepReport
from loadgen.paper.real.record import Record
from loadgen.paper.trial import Course, Trial, assembled, known, trial
from loadgen.simulation import Simulation, Watch, served
from loadgen.validation.real import serve
from loadgen.workload.lengths import Lengths
from scheduler.assembly import Parts
from scheduler.background import background
from scheduler.bilinear import Bilinear
from scheduler.clock import Clock, MonotonicClock
from scheduler.dispatcher import Dispatcher
from scheduler.worker import Port

WARM_UP = 4
"""Requests that are played before a run, and forgotten."""
WARM_UP_TOKENS = 8

Prompts = Sequence[tuple[int, ...]]
Listener = Callable[[Report], None]


class Relay:
    """Brings reports from the executors' threads to whoever listens on the event loop at the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.listener: Listener | None = None

    def deliver(self, report: Report) -> None:
        """May be called from any thread, and after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(self._hear, report)

    def _hear(self, report: Report) -> None:
        if self.listener is not None:
            self.listener(report)


async def play_course(
    course: Course,
    ports: Sequence[Port],
    relay: Relay,
    requests: Sequence[Lengths],
    prompts: Prompts,
    seed: int,
    watch: Watch,
) -> Trial:
    """`record_course`, as the figures of a trial."""
    return trial(*await record_course(course, ports, relay, requests, prompts, seed, watch))


async def record_course(
    course: Course,
    ports: Sequence[Port],
    relay: Relay,
    requests: Sequence[Lengths],
    prompts: Prompts,
    seed: int,
    watch: Watch,
) -> tuple[Simulation, float]:
    """Serve the requests, in order of arrival, on executors that run and report to the relay.

    `seed` is of the predictions' errors. Returns what became of them, and the share of slices that ended early. Raises
    PlayError when a request fails, and StrategyError.
    """
    clock = MonotonicClock()
    await _warm_up(course, ports, relay, requests, prompts, clock)
    parts, slices = assembled(course, _serving_time(course))
    records = {port.info.index: Record() for port in ports}

    def note(report: Report) -> None:
        if isinstance(report, StepReport):
            records[report.executor].add(report, clock.now())

    async with _dispatching(parts, ports, relay, clock, note) as dispatcher:
        predict = known(course).source(seed)
        done = await serve(
            dispatcher, clock, requests, prompts, max_tokens=course.max_tokens, predict=predict, watch=watch
        )
    origin = done[0].times.arrival - requests[0].arrival
    workers = tuple(record.finished(origin) for record in records.values())
    return Simulation(tuple(served(request, origin) for request in done), workers), slices.early_share


async def _warm_up(
    course: Course, ports: Sequence[Port], relay: Relay, requests: Sequence[Lengths], prompts: Prompts, clock: Clock
) -> None:
    """A few short requests through parts of their own, so that the run finds the executors as later ones do."""
    few = [Lengths(0.0, one.input_length, min(one.output_length, WARM_UP_TOKENS)) for one in requests[:WARM_UP]]
    parts, _ = assembled(course, _serving_time(course))
    async with _dispatching(parts, ports, relay, clock) as dispatcher:
        await serve(
            dispatcher, clock, few, prompts[:WARM_UP], max_tokens=course.max_tokens, predict=known(course).source(0)
        )


def _serving_time(course: Course) -> Bilinear | None:
    """The machine's profile; nobody has measured one with weights that a strategy wants kept in its own way."""
    cost = course.machine.cost
    return cost if isinstance(cost, Bilinear) and course.strategy.quantization is None else None


@asynccontextmanager
async def _dispatching(
    parts: Parts, ports: Sequence[Port], relay: Relay, clock: Clock, note: Listener = lambda report: None
) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(parts, ports, clock)

    def listen(report: Report) -> None:
        note(report)
        dispatcher.receive(report)

    relay.listener = listen
    async with background(dispatcher.run(), "dispatcher"):
        yield dispatcher
