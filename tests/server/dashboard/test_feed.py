"""The feed of the dashboard: what it tells, to whom, and that it costs nothing and disturbs nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import orjson
import pytest

from engine.messages import BatchShape, ExecutorDied, FinishReason, Report, StepReport, StepStats
from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.strategy import STRATEGIES
from server.api.errors import ApiError
from server.dashboard.feed import MOST_VIEWERS, Feed
from server.dashboard.scene import MOST_SENT, DashboardState
from server.dashboard.snapshot import Stage
from tests.scheduler.fakes import VirtualClock, port, token
from tests.server.live import Live, live_server

SOON = 0.001
"""Seconds between two snapshots."""


class Theatre:
    """A dispatcher on a clock and an executor that the test plays, and a feed of what happens there."""

    def __init__(self, model: str = "m", rows: int = 2) -> None:
        self.clock = VirtualClock()
        self.feed = Feed(SOON)
        self.requests: list[Request] = []
        parts = assemble(STRATEGIES["baton-pd"], BatchLimits(group_tokens=100, prefill_ahead=0))
        self.dispatcher = Dispatcher(parts, [port(rows=rows)], self.clock, (self.feed,))
        self.dispatcher.waits.wait = lambda request: 1.5  # type: ignore[method-assign]
        self.feed.show(DashboardState(self.dispatcher, model, "baton-pd", 500))

    def submit(self, predicted: float | None = None, priority: int = 0) -> Request:
        sampling = SamplingParams(max_tokens=8)
        self.requests.append(self.dispatcher.submit(range(4), sampling, predicted_length=predicted, priority=priority))
        return self.requests[-1]

    def send(self, predicted: float | None = None) -> Request:
        """A request that the executor has got."""
        one = self.submit(predicted)
        self.dispatcher.dispatch()
        return one

    @asynccontextmanager
    async def viewed(self) -> AsyncIterator[tuple[Any, AsyncIterator[Any]]]:
        """What somebody gets who looks: the first frame, and the snapshots."""
        async with aclosing(self.feed.frames()) as frames:
            name, hello = parsed(await anext(frames))
            assert name == "hello"
            yield hello, (parsed(frame)[1] async for frame in frames)

    def receive(self, report: Report) -> None:
        self.feed.receive(report)
        self.dispatcher.receive(report)

    def step(self, *row_ids: int, end: FinishReason | None = None, begun: tuple[int, ...] = ()) -> None:
        """A second passes in which rows get a token."""
        self.clock.time += 1.0
        updates = tuple(token(row_id, 5, end=end) for row_id in row_ids)
        reads = StepStats(reads=6 * len(updates), pad_reads=3, invalid_reads=2)
        tally = StepStats(prompt=4 * len(begun), generated=len(updates), pad=1, invalid=2) + reads
        shape = BatchShape(rows=len(updates), start=3, end=9, columns=50, capacity_tokens=200)
        self.receive(StepReport(0, 1, updates, shape, 0.25, begun, tally=tally))

    def serve(self, one: Request) -> Request:
        """Two seconds pass in which a request is answered."""
        self.step(one.row_id, begun=(one.row_id,))
        self.step(one.row_id, end=FinishReason.STOP)
        return one


def parsed(frame: bytes) -> tuple[str, Any]:
    name, _, data = frame.decode().partition("\n")
    assert data.startswith("data: ") and frame.endswith(b"\n\n")
    return name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))


@pytest.fixture
def theatre() -> Theatre:
    return Theatre()


async def test_a_viewer_is_told_what_serves_and_then_what_happens(theatre: Theatre) -> None:
    first, second, third = theatre.submit(6.4), theatre.submit(), theatre.submit()
    theatre.dispatcher.dispatch()
    async with theatre.viewed() as (hello, ticks):
        assert (hello["model"], hello["strategy"]) == ("m", "baton-pd")
        room = {"max_rows": 2, "capacity_tokens": 1000, "context_length": 500}
        assert hello["devices"] == [{"index": 0, "device": "cpu", **room}]
        theatre.step(first.row_id, begun=(first.row_id,))
        theatre.clock.time += 1.0
        tick = await anext(ticks)
    assert (tick["t"], tick["waiting"], tick["running"]) == (2.0, 2, 1)
    row = [0, first.row_id, Stage.DECODE, 4, 1, 6]
    expected = {"rows": [row], "batch": 1, "window": 6, "columns": 50, "capacity": 200, "step_ms": 250.0}
    assert tick["executors"] == [{"index": 0, "alive": True, "staged": 0, **expected}]
    stages = [Stage.PREFILL, Stage.STAGED, Stage.DECODE]
    assert [change[1:5] for change in tick["changes"]] == [[0, 0, first.row_id, stage] for stage in stages]
    sent = [second.row_id, 4, 0, None, 2.0, None, 0, 0]
    queued = [third.row_id, 4, 0, None, 2.0, 1.5, 0, None]
    assert tick["queue"] == [sent, queued]
    reads = {"reads": 6, "pad_reads": 3, "invalid_reads": 2, "invalid": 2}
    assert tick["totals"] == {"prompt": 4, "generated": 1, "pad": 1, **reads, "cached": 0, "ended": 0, "failed": 0}


async def test_what_was_sent_to_executors_leaves_room_for_those_that_have_a_place() -> None:
    theatre = Theatre(rows=9)
    for _ in range(12):
        theatre.submit()
    theatre.dispatcher.dispatch()
    async with theatre.viewed() as (_, ticks):
        tick = await anext(ticks)
    assert tick["waiting"] == 12
    assert [executor for *_, executor in tick["queue"]] == [0] * MOST_SENT + [None] * 3


async def test_clients_are_told_apart_once_there_are_two(theatre: Theatre) -> None:
    first, second = theatre.submit(), theatre.submit()
    second.client = "user-1"
    theatre.submit().client = "user-2"
    theatre.dispatcher.dispatch()
    async with theatre.viewed() as (_, ticks):
        theatre.step(first.row_id, begun=(first.row_id,))
        told = {name: rest for name, *rest in (await anext(ticks))["clients"]}
        assert told == {"": [0, 1, 4 + 2], "user-1": [1, 0, 0], "user-2": [1, 0, 0]}
        theatre.step(first.row_id, end=FinishReason.STOP)
        tick = await anext(ticks)
        assert ["", 0, 0, 4 + 2 * 2] in tick["clients"]
        assert tick["order"] is None


async def test_answers_are_told_once_and_to_newcomers_again(theatre: Theatre) -> None:
    async with theatre.viewed() as (_, ticks):
        theatre.serve(theatre.send(3.0))
        ended = [2.0, 4, 2, 3, 0.75, 1.0, 2.0, None, None]
        assert [(await anext(ticks))["ended"] for _ in range(2)] == [[ended], []]
    async with theatre.viewed() as (hello, _):
        assert hello["ended"] == [ended]


async def test_first_tokens_are_told_when_they_come(theatre: Theatre) -> None:
    one = theatre.send()
    async with theatre.viewed() as (_, ticks):
        theatre.step(one.row_id, begun=(one.row_id,))
        tick = await anext(ticks)
        assert (tick["first_tokens"], tick["ended"]) == ([[1.0, 1.0]], [])
        theatre.step(one.row_id)
        assert (await anext(ticks))["first_tokens"] == []
    async with theatre.viewed() as (hello, _):
        assert hello["first_tokens"] == [[1.0, 1.0]]


async def test_a_slow_reader_misses_snapshots_and_nothing_is_kept_for_it(theatre: Theatre) -> None:
    async with theatre.viewed() as (_, slow), theatre.viewed() as (_, quick):
        for waiting in range(1, 6):
            theatre.submit()
            assert (await anext(quick))["waiting"] == waiting
        theatre.clock.time = 9.0
        assert (await anext(slow))["t"] == 9.0


async def test_who_comes_later_gets_the_lanes_of_five_minutes_and_the_figures_of_the_last(theatre: Theatre) -> None:
    """The picture began with the page."""
    old = theatre.serve(theatre.send())
    theatre.clock.time = 310.0
    one = theatre.serve(theatre.send(6.0))
    two = theatre.send()
    theatre.step(two.row_id, begun=(two.row_id,))
    async with theatre.viewed() as (hello, ticks):
        assert hello["t"] == 313.0
        changes = [(row, stage, at) for at, _, _, row, stage, *_ in hello["changes"]]
        assert changes[-1] == (two.row_id, Stage.DECODE, 312.75)
        assert {(one.row_id, Stage.DECODE, 310.75), (one.row_id, Stage.GONE, 312.0)} < {*changes}
        assert (old.row_id, Stage.DECODE) not in {(row, stage) for row, stage, _ in changes}
        assert [moment["t"] for moment in hello["moments"]] == [311.0, 312.0, 313.0]
        assert (await anext(ticks))["changes"] == []


async def test_snapshots_are_made_only_while_somebody_looks(theatre: Theatre) -> None:
    def looking() -> tuple[int, int]:
        return theatre.feed.viewers, [task.get_name() for task in asyncio.all_tasks()].count("dashboard")

    assert looking() == (0, 0)
    async with theatre.viewed():
        assert looking() == (1, 1)
    await asyncio.sleep(0)
    assert looking() == (0, 0)


async def test_a_fault_of_the_feed_ends_it_and_nothing_else(theatre: Theatre, caplog: pytest.LogCaptureFixture) -> None:
    async with theatre.viewed() as (_, ticks):
        theatre.feed.receive(ExecutorDied(99, "of which nobody has heard"))
        with pytest.raises(StopAsyncIteration):
            await anext(ticks)
    assert "the dashboard lost track" in caplog.text
    async with theatre.viewed() as (_, ticks):
        await anext(ticks)


async def test_an_executor_that_died_leaves_no_row(theatre: Theatre) -> None:
    one = theatre.send()
    async with theatre.viewed() as (_, ticks):
        theatre.step(one.row_id, begun=(one.row_id,))
        theatre.receive(ExecutorDied(0, "fire"))
        tick = await anext(ticks)
    assert tick["executors"][0]["rows"] == [] and not tick["executors"][0]["alive"]
    assert tick["changes"][-1][2:5] == [0, one.row_id, Stage.GONE]
    assert tick["totals"]["failed"] == 1


async def test_only_so_many_may_look(theatre: Theatre) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MOST_VIEWERS):
            await stack.enter_async_context(theatre.viewed())
        with pytest.raises(ApiError, match="dashboards are open already"):
            await anext(theatre.feed.frames())


async def test_it_is_served_as_events_until_the_reader_leaves(theatre: Theatre) -> None:
    async with live_server(feed=theatre.feed) as live:
        async with live.session.get(live.url + "/dashboard/events") as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = [await response.content.readuntil(b"\n\n") for _ in range(2)]
            assert [parsed(line)[0] for line in lines] == ["hello", "tick"]
        while theatre.feed.viewers:
            await asyncio.sleep(SOON)


async def test_a_server_that_goes_does_not_wait_for_viewers(theatre: Theatre) -> None:
    async with live_server(feed=theatre.feed) as live:
        response = await live.session.get(live.url + "/dashboard/events")
        await response.content.readuntil(b"\n\n")
        theatre.feed.close()
        assert (await response.read()).count(b"event: hello") == 0
        assert (await live.get("/dashboard/events")).status == 503


async def test_a_server_without_a_feed_has_none(live: Live) -> None:
    assert (await live.get("/dashboard/events")).status == 404
