"""Executors that stand still in a whole server, with real threads and real HTTP: who is told what, how often."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.lifecycle import Lifecycle
from engine.messages import Report, StepReport
from engine.row import Row
from scheduler.dispatcher import Dispatcher
from server.composition import app
from server.process import watchdog
from server.process.watchdog import Watchdog
from tests.live_server import config_of
from tests.server.live import Live, chat_body, live_server, text_of

FIELDS = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}


@dataclass
class Machine:
    """A server whose executors have a row each, and of whom the first stands still after a turn, until it is woken."""

    folder: Path
    woken: threading.Event = field(default_factory=threading.Event)
    looked_at: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the watchdog shall begin to look."""
    steps: set[tuple[int, int]] = field(default_factory=set)
    """Executors that have told of a step, and its number."""
    begun: bool = False

    @asynccontextmanager
    async def served(self, executors: int) -> AsyncIterator[tuple[Live, Dispatcher]]:
        turn, receive, run = Lifecycle.turn, Dispatcher.receive, Watchdog.run

        def stand_still(lifecycle: Lifecycle[Row]) -> None:
            if threading.current_thread().name == "executor-0":
                assert not self.begun or self.woken.wait(60)
                self.begun = True
            turn(lifecycle)

        def note(dispatcher: Dispatcher, report: Report) -> None:
            self.steps |= {(report.executor, report.step)} if isinstance(report, StepReport) else set()
            receive(dispatcher, report)

        async def wait_and_run(watchdog: Watchdog) -> None:
            await self.looked_at.wait()
            await run(watchdog)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lifecycle, "turn", stand_still)
            patch.setattr(Dispatcher, "receive", note)
            patch.setattr(Watchdog, "run", wait_and_run)
            patch.setattr(watchdog, "INTERVAL", 0.05)
            size = {"executors": executors, "max_num_seqs": 1, "prefill_ahead": 0, "stall_timeout": 0.4}
            async with app.open_service(config_of(self.folder, device="cpu", **size)) as service:
                async with live_server(dispatcher=service.dispatcher) as live:
                    yield live, service.dispatcher
                self.woken.set()


@pytest.fixture
async def machine(tiny_folder: Path) -> Machine:
    return Machine(tiny_folder)


async def ready(live: Live) -> tuple[int, str | None]:
    reply = await live.get("/health/ready")
    return reply.status, reply.json.get("error", {}).get("code")


async def codes(live: Live, calls: int) -> list[str | None]:
    """Codes of the errors that streams ended with; None for a whole answer."""
    streams = await asyncio.gather(*(live.stream_chat(**FIELDS) for _ in range(calls)))
    errors = [[event["error"]["code"] for event in events if "error" in event] for events in streams]
    assert all(len(one) <= 1 for one in errors)
    return [one[0] if one else None for one in errors]


async def test_with_the_only_executor_standing_still_all_get_one_error_and_readiness_turns(machine: Machine) -> None:
    async with machine.served(executors=1) as (live, dispatcher):
        assert await ready(live) == (200, None)
        ended = asyncio.create_task(codes(live, 3))
        # One that came later could be refused at once.
        while dispatcher.table.requests_waiting + dispatcher.table.requests_running < 3:
            await asyncio.sleep(0)
        machine.looked_at.set()
        assert await ended == ["executor_failed"] * 3
        assert await ready(live) == (503, "no_executor")
        await dispatcher.death()
        await live.refused("/v1/chat/completions", chat_body(), 503, code="executor_failed")


async def test_what_the_one_had_not_begun_another_executor_serves(machine: Machine) -> None:
    async with machine.served(executors=2) as (live, _):
        machine.looked_at.set()
        assert sorted(one or "" for one in await codes(live, 6)) == [""] * 5 + ["executor_failed"]
        assert await ready(live) == (200, None)


async def test_what_a_woken_executor_says_changes_no_answer(machine: Machine) -> None:
    async with machine.served(executors=2) as (live, _):
        machine.looked_at.set()
        found = await codes(live, 2)
        machine.woken.set()
        assert sorted(one or "" for one in found) == ["", "executor_failed"]
        before = text_of(await live.stream_chat(**FIELDS))
        while not any(executor == 0 and step > 1 for executor, step in machine.steps):
            await asyncio.sleep(0)
        assert text_of(await live.stream_chat(**FIELDS)) == before != ""
