"""The dispatcher's coroutine, its book on what executors have to do, and hundreds of requests through it
with everything happening that can happen."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from engine.messages import Admit, Cancel, Cause, ExecutorDied, FinishReason, HandedBack, RowId, RowUpdate, StepReport
from scheduler.assembly import SchedulerParts
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.options import Scheduling
from scheduler.placement import idle_first
from scheduler.plan import Plan
from scheduler.request import Refused, Request, State
from scheduler.serving_time.bilinear import Bilinear
from scheduler.stream import AT_ONCE, SLICE
from scheduler.worker import Worker
from tests.scheduler.fakes import FakePort, Stage, admitted, kit, port, settle, steps, token

LIMITS = BatchLimits(group_tokens=200, prefill_ahead=2)
PROFILE = Bilinear(*(0.001 for _ in range(8)))


async def test_the_loop_wakes_for_arrivals_and_reports() -> None:
    stage = Stage(port(rows=1), limits=LIMITS)
    running = asyncio.create_task(stage.dispatcher.run())
    await settle()
    requests = [stage.submit() for _ in range(4)]
    await settle()
    assert admitted(stage.ports[0].take()) == [[0, 1, 2]]
    stage.report(token(0, 5, end=FinishReason.STOP))
    await settle()
    assert admitted(stage.ports[0].take()) == [[3]]
    assert [one.state for one in requests] == [State.FINISHED] + [State.ASSIGNED] * 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_all_else_runs_between_the_readers_of_a_step_of_a_thousand_rows() -> None:
    """All of them ran before anything else did, which held the loop for 60 ms."""
    stage = Stage(port(capacity=10**6, rows=1000), limits=BatchLimits(group_tokens=10**6, prefill_ahead=0))
    requests = [stage.submit() for _ in range(1000)]
    stage.dispatch()
    read: list[RowId] = []

    async def follow(request: Request) -> None:
        async for update in request.stream:
            read.append(update.row_id)

    reading = asyncio.gather(*map(follow, requests))
    await settle()
    stage.report(*(token(request.row_id, 7) for request in requests))
    assert max(await steps(lambda: len(read), 1000)) <= AT_ONCE
    assert read == [request.row_id for request in requests]
    reading.cancel()


async def test_all_else_runs_between_requests_that_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rows that left in one instant held the loop for 96 to 357 ms."""
    loop, now = asyncio.get_running_loop(), [0.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    stage = Stage()
    cancel = stage.dispatcher.cancel

    def cancel_slowly(request: Request) -> None:
        now[0] += 0.3 * SLICE
        cancel(request)

    monkeypatch.setattr(stage.dispatcher, "cancel", cancel_slowly)
    requests = [stage.submit() for _ in range(100)]
    leaving = asyncio.create_task(stage.dispatcher.cancel_all(requests))
    assert max(await steps(lambda: sum(request.state is State.CANCELLED for request in requests), 100)) == 4
    await leaving


@dataclass(eq=False)
class PlayedExecutor(FakePort):
    """Carries out orders as a device would: a token a row and turn, rows that end or fail or whose slice ends then, and
    a death perhaps."""

    rng: random.Random = field(default_factory=random.Random)
    left: dict[RowId, int] = field(default_factory=dict)
    made: Counter[RowId] = field(default_factory=Counter)
    priorities: dict[RowId, int] = field(default_factory=dict)
    sliced: bool = False

    def obey(self) -> None:
        for order in self.take():
            match order:
                case Admit(rows):
                    assert self.alive and not {row.row_id for row in rows} & self.left.keys()
                    self.sliced = order.terms.iterations is not None
                    self.priorities |= {row.row_id: row.priority for row in rows}
                    self.left |= {row.row_id: self.rng.randint(1, row.sampling.max_tokens) for row in rows}
                case Cancel(row_ids):
                    assert all(self.left.pop(row_id, None) for row_id in row_ids if row_id in self.left)
        classes = Counter(self.priorities[row_id] for row_id in self.left)
        assert self.sliced or all(rows <= self.info.max_rows + LIMITS.prefill_ahead for rows in classes.values())

    def turn(self) -> StepReport:
        report = self.report(*(self.advance(row_id) for row_id in list(self.left) if self.rng.random() < 0.7))
        if not self.sliced:
            return report
        back = HandedBack(tuple(self.left), Cause.SLICE)
        self.left.clear()
        return replace(report, handed_back=(back,))

    def advance(self, row_id: RowId) -> RowUpdate:
        if self.rng.random() < 0.01:
            del self.left[row_id]
            return token(row_id, end=FinishReason.ERROR)
        self.made[row_id] += 1
        self.left[row_id] -= 1
        if self.left[row_id] > 0:
            return token(row_id, 5)
        del self.left[row_id]
        return token(row_id, 5, end=FinishReason.LENGTH)

    def die(self) -> ExecutorDied:
        self.alive = False
        self.left.clear()
        return ExecutorDied(self.info.index, "it was its time")


class World(Stage):
    """A dispatcher and played executors, with arrivals, cancellations and deaths by lot."""

    def __init__(self, seed: int, executors: int, strategy: str) -> None:
        self.rng = random.Random(seed)
        sizes = [(self.rng.choice([60, 400]), self.rng.randint(1, 8)) for _ in range(executors)]
        ports = (port(index, capacity=capacity, rows=rows) for index, (capacity, rows) in enumerate(sizes))
        self.executors = [PlayedExecutor(one.info, rng=self.rng) for one in ports]
        super().__init__(*self.executors, strategy=strategy, limits=LIMITS, prices=PROFILE)
        self.requests: list[Request] = []

    def run(self, requests: int, *, deaths: int) -> None:
        fatal = set(self.rng.sample(range(20, 110), deaths))
        for step in range(100_000):
            if len(self.requests) >= requests and all(one.state.is_final for one in self.requests):
                return
            if len(self.requests) < requests:
                self.arrive()
            if step in fatal and len(self.living()) > 1:
                self.dispatcher.receive(self.rng.choice(self.living()).die())
            self.step()
        raise AssertionError("requests are left behind")

    def arrive(self) -> None:
        for _ in range(self.rng.randint(0, 12)):
            length, most, priority = self.rng.randint(1, 50), self.rng.randint(1, 6), self.rng.choice([0, 0, 1])
            self.requests.append(self.submit(length, most=most, priority=priority))

    def step(self) -> None:
        self.clock.time += 1.0
        self.dispatcher.dispatch()
        for executor in self.living():
            executor.obey()
            report = executor.turn()
            if self.requests and self.rng.random() < 0.2:
                self.dispatcher.cancel(self.rng.choice(self.requests))  # while the report is under way
            for one in self.rng.sample(self.requests[-40:], min(4, len(self.requests))):
                self.dispatcher.revise(one, self.rng.uniform(1.0, 6.0))
            self.dispatcher.receive(report)
        assert all(worker.assignments.keys() == worker.requests.keys() for worker in self.dispatcher.workers)

    def living(self) -> list[PlayedExecutor]:
        return [executor for executor in self.executors if executor.alive]


async def ends_of(request: Request) -> list[FinishReason]:
    """The ends that a reader of the answer is told, which come merged since it reads only now."""
    if request.state is State.CANCELLED:
        return []
    return [update.finish_reason async for update in request.stream if update.finish_reason is not None]


JOINED_OR_CLOSED, SLICED = ("baton-pd", "magnus", "ssjf-continuous", "ssjf-dynamic"), ("so", "pm", "ab", "lb", "scls")


@pytest.mark.parametrize(("seed", "executors", "deaths"), [(0, 1, 0), (1, 2, 0), (2, 3, 2), (3, 5, 4), (4, 4, 3)])
@pytest.mark.parametrize("strategy", [*JOINED_OR_CLOSED, *SLICED])
async def test_no_request_is_lost_and_none_ends_twice(seed: int, executors: int, deaths: int, strategy: str) -> None:
    """An illegal second end would raise; what is checked here is that each had one and the counts agree."""
    world = World(seed, executors, strategy)
    world.run(750, deaths=deaths)
    assert len(world.living()) == executors - deaths
    assert Counter(one.state for one in world.requests).keys() == {State.FINISHED, State.CANCELLED, State.FAILED}
    made = sum((executor.made for executor in world.executors), Counter[RowId]())
    for one in world.requests:
        assert one.executor is None and one.times.end is not None
        assert one.generated <= made[one.row_id]
        assert one.generated == made[one.row_id] or deaths or one.state is State.CANCELLED
        expected = {State.FINISHED: [FinishReason.LENGTH], State.FAILED: [FinishReason.ERROR], State.CANCELLED: []}
        assert await ends_of(one) == expected[one.state]
    for executor in world.living():
        executor.obey()
        assert executor.left == {}
    assert not any(worker.load for worker in world.dispatcher.workers)
    assert (world.dispatcher.table.requests_waiting, world.dispatcher.table.requests_running) == (0, 0)
    await world.dispatcher.drain()


class BrokenBatcher(ContinuousBatcher):
    """A strategy's part with bugs."""

    def take(self, worker: Worker, now: float) -> Plan | None:
        raise ZeroDivisionError

    def revise(self, request: Request, now: float) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("revised", [False, True], ids=["in a decision", "as a prediction changes"])
async def test_a_fault_in_a_part_ends_every_request_with_an_error_and_shows(revised: bool) -> None:
    """It used to end the loop alone: requests waited for ever while the server called itself ready."""
    stage = Stage(parts=SchedulerParts(BrokenBatcher(kit(LIMITS)), idle_first))
    request = stage.submit()
    if revised:
        stage.dispatcher.revise(request, 3.0)
    else:
        await stage.dispatcher.run()
    assert [update.error async for update in request.stream] == ["the scheduler failed"]
    assert request.state is State.FAILED and not stage.dispatcher.alive
    stage.dispatcher.revise(request, 2.0)  # it has ended, so nobody looks at it
    with pytest.raises(Refused, match="the scheduler failed"):
        stage.submit()


SLICES = BatchLimits(group_tokens=100, prefill_ahead=0, options=Scheduling(slice_length=4, min_interval=1.0))
WRONG = Bilinear(p1=0.5, p2=0.0, p3=0.0, p4=7.0, d1=0.0, d2=0.0, d3=0.0, d4=100.0)
"""Model of a device that is far slower than any that is played here."""


class Booked(Stage):
    """Two executors, requests of these lengths, and the dispatcher's own book on their workers."""

    def __init__(self, *lengths: int, rows: int = 2) -> None:
        super().__init__(port(0, rows=rows), port(1, rows=rows), strategy="lb", limits=SLICES, prices=WRONG)
        for length in lengths:
            self.submit(length)

    def sent(self) -> list[list[list[RowId]]]:
        """Rows that each executor is sent, command by command."""
        self.dispatcher.dispatch()
        return [admitted(one.take()) for one in self.ports]

    def end(self, executor: int, *row_ids: RowId) -> None:
        self.report(*(token(row_id, 5, end=FinishReason.STOP) for row_id in row_ids), executor=executor)

    def loads(self) -> list[float]:
        return [worker.load for worker in self.dispatcher.workers]


def estimate(rows: int, length: int) -> float:
    return WRONG.serve(float(rows), float(length), 4.0)


def test_the_longest_batch_goes_to_the_least_loaded() -> None:
    stage = Booked(2, 20, 10, 40, rows=1)
    assert stage.sent() == [[[3], [0]], [[1], [2]]]
    assert stage.loads() == pytest.approx([estimate(1, 40) + estimate(1, 2), estimate(1, 20) + estimate(1, 10)])


def test_a_load_is_what_is_not_finished_and_nothing_is_left_of_it_in_the_end() -> None:
    stage = Booked(4, 4, 8, 8)
    assert stage.sent() == [[[2, 3]], [[0, 1]]]
    stage.end(0, 2)
    assert stage.loads() == pytest.approx([estimate(2, 8), estimate(2, 4)]), "the batch goes on"
    stage.report(token(3, 5))
    stage.hand_back(Cause.SLICE, 3)
    assert stage.loads() == pytest.approx([0.0, estimate(2, 4)])
    stage.end(1, 0, 1)
    assert stage.loads() == [0.0, 0.0]


async def test_the_loop_arranges_again_when_the_interval_has_passed() -> None:
    stage = Booked()
    running = asyncio.create_task(stage.dispatcher.run())
    for _ in range(2):
        stage.submit()
        await settle()
    assert [admitted(one.take()) for one in stage.ports] == [[[0]], [[1]]]
    assert stage.clock.time == SLICES.options.min_interval, "it asked to be woken then, and nothing else happened"
    running.cancel()
