"""Executors that stand still under a real dispatcher, real threads, real HTTP: who is told what, how often."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from engine.device import Action
from engine.executor import Executor
from engine.lifecycle import Lifecycle
from engine.messages import (
    BatchPolicy,
    BatchShape,
    ExecutorInfo,
    FinishReason,
    Report,
    RowId,
    RowSpec,
    RowUpdate,
    StepReport,
)
from engine.row import Row
from engine.rows import RowTable
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.clock import MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.strategy import STRATEGIES
from server.process.watchdog import Watchdog
from tests.server.live import Live, chat_body, live_server, text_of

TOKENS = 3
"""Tokens of each answer."""


class FragileLifecycle:
    """Makes a letter a row and turn. After the first, a turn waits for `fault`, where there is one."""

    updates: tuple[RowUpdate, ...] = ()
    short, lost, capacity, failures = False, False, 1.0, MappingProxyType({Action.DECODE: 0})

    def __init__(self) -> None:
        self.table = self
        self.made: dict[RowId, int] = {}
        self.turns = 0
        self.fault: threading.Event | None = None

    @property
    def idle(self) -> bool:
        return not self.made

    carry_out = RowTable.carry_out

    def admit(self, specs: Iterable[RowSpec], terms: BatchPolicy) -> None:
        self.made.update((one.row_id, 0) for one in specs)

    def cancel(self, row_ids: Iterable[RowId]) -> None:
        for row_id in row_ids:
            self.made.pop(row_id, None)

    def salvage(self) -> tuple[RowId, ...]:
        return ()

    def leave_store(self) -> None:
        pass

    def report(self, executor: int, step: int, seconds: float) -> StepReport:
        return StepReport(executor, step, self.updates, self.shape(), seconds)

    def shape(self) -> BatchShape:
        return BatchShape(rows=len(self.made))

    def turn(self) -> None:
        self.turns += 1
        if self.turns > 1 and self.fault is not None:
            assert self.fault.wait(60)
        self.updates = tuple(self._advance(row_id) for row_id in list(self.made))

    def _advance(self, row_id: RowId) -> RowUpdate:
        self.made[row_id] += 1
        if self.made[row_id] < TOKENS:
            return RowUpdate(row_id, (65,), "A")
        del self.made[row_id]
        return RowUpdate(row_id, (65,), "A", finish_reason=FinishReason.LENGTH)


@dataclass
class Machine:
    """Executors and who watches over them."""

    dispatcher: Dispatcher
    lifecycles: list[FragileLifecycle]
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the watchdog shall begin to look."""
    reports: list[Report] = field(default_factory=list)

    async def until_taken(self, calls: int) -> None:
        """Return when so many calls are in: one that came later could be refused at once."""
        while self.dispatcher.table.requests_waiting + self.dispatcher.table.requests_running < calls:
            await asyncio.sleep(0)


@asynccontextmanager
async def machine(executors: int) -> AsyncIterator[Machine]:
    loop, lifecycles = asyncio.get_running_loop(), [FragileLifecycle() for _ in range(executors)]

    def deliver(report: Report) -> None:
        loop.call_soon_threadsafe(receive, report)

    def receive(report: Report) -> None:
        made.reports.append(report)
        watchdog.receive(report)
        dispatcher.receive(report)

    async def watch() -> None:
        await made.watched.wait()
        await watchdog.run()

    infos = [ExecutorInfo(index, "cpu", 10_000, 1, 256) for index in range(executors)]
    threads = [Executor(*pair, deliver) for pair in zip(infos, cast(list[Lifecycle[Row]], lifecycles), strict=True)]
    parts = assemble(STRATEGIES["baton-pd"], BatchLimits(group_tokens=1000, prefill_ahead=0))
    dispatcher = Dispatcher(parts, threads, MonotonicClock())
    watchdog = Watchdog(threads, dispatcher, 0.4, interval=0.05)
    made = Machine(dispatcher, lifecycles)
    with _running(threads, lifecycles):
        dispatching = asyncio.create_task(dispatcher.run())
        async with background(watch(), "watchdog"):
            yield made
        dispatching.cancel()


@contextmanager
def _running(threads: list[Executor], lifecycles: list[FragileLifecycle]) -> Iterator[None]:
    for one in threads:
        one.start()
    try:
        yield
    finally:
        for fault in [one.fault for one in lifecycles if one.fault is not None]:
            fault.set()  # it wakes up, and finds that it is to end
        for one in threads:
            one.stop(20)
            assert not one.alive


async def ready(live: Live) -> tuple[int, str | None]:
    reply = await live.get("/health/ready")
    return reply.status, reply.json.get("error", {}).get("code")


async def codes(live: Live, calls: int) -> list[str | None]:
    """Codes of the errors that streams ended with; None for a whole answer."""
    streams = await asyncio.gather(*(live.stream_chat(max_tokens=TOKENS) for _ in range(calls)))
    errors = [[event["error"]["code"] for event in events if "error" in event] for events in streams]
    assert all(len(one) <= 1 for one in errors)
    return [one[0] if one else None for one in errors]


async def test_with_the_only_executor_standing_still_all_get_one_error_and_readiness_turns() -> None:
    async with machine(1) as made, live_server(dispatcher=made.dispatcher) as live:
        assert await ready(live) == (200, None)
        made.lifecycles[0].fault = threading.Event()
        ended = asyncio.create_task(codes(live, 3))
        await made.until_taken(3)
        made.watched.set()
        assert await ended == ["executor_failed"] * 3
        assert await ready(live) == (503, "no_executor")
        await made.dispatcher.death()
        status, reply = await live.post("/v1/chat/completions", chat_body())
        assert (status, reply["error"]["code"]) == (503, "executor_failed")


async def test_what_the_one_had_not_begun_another_executor_serves() -> None:
    async with machine(2) as made, live_server(dispatcher=made.dispatcher) as live:
        made.lifecycles[0].fault = threading.Event()
        made.watched.set()
        found = await codes(live, 6)
        assert sorted(one or "" for one in found) == [""] * 5 + ["executor_failed"]
        assert await ready(live) == (200, None)


async def test_what_a_woken_executor_says_changes_no_answer() -> None:
    async with machine(2) as made, live_server(dispatcher=made.dispatcher) as live:
        made.lifecycles[0].fault = go = threading.Event()
        made.watched.set()
        found = await codes(live, 2)
        go.set()
        assert sorted(one or "" for one in found) == ["", "executor_failed"]
        while not any(isinstance(one, StepReport) and one.executor == 0 and one.step > 1 for one in made.reports):
            await asyncio.sleep(0)
        assert text_of(await live.stream_chat(max_tokens=TOKENS)) == "A" * TOKENS
