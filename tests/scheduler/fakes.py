"""A scheduler's surroundings in miniature: a clock that a test moves, executors that a test plays, short requests."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from engine.messages import Admit, Cancel, Cause, Command, ExecutorInfo, FinishReason, HandedBack, RowUpdate, StepReport
from engine.sampling.params import SamplingParams
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import Batcher, BatcherParts, BatchLimits
from scheduler.batching.memory import MEMORIES
from scheduler.dispatcher import Dispatcher
from scheduler.plan import Plan, Returns
from scheduler.request import Request, Times
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from scheduler.waiting.by_length import Fcfs
from scheduler.waiting.queue import RankedQueue
from scheduler.worker import Worker


class VirtualClock:
    """Time moves when the test moves it, or when somebody waits for a moment."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        if until is None:
            await event.wait()
        elif not event.is_set():
            self.time = max(self.time, until)


@dataclass(eq=False)
class FakePort:
    """An executor of which only the letterbox exists."""

    info: ExecutorInfo
    alive: bool = True
    posted: list[Command] = field(default_factory=list)
    untaken: tuple[Command, ...] = ()
    """Commands that the executor will never take up, once it is gone."""

    def post(self, command: Command) -> None:
        self.posted.append(command)

    def reclaim(self) -> tuple[Command, ...]:
        return self.untaken

    def take(self) -> list[Command]:
        """The commands since the last look."""
        commands, self.posted = self.posted, []
        return commands

    def report(self, *updates: RowUpdate) -> StepReport:
        return StepReport(self.info.index, 1, updates, Worker(self).shape, 0.0)


def port(index: int = 0, *, capacity: int = 1000, rows: int = 4, context: int = 500) -> FakePort:
    return FakePort(ExecutorInfo(index, "cpu", capacity_tokens=capacity, max_rows=rows, context_length=context))


def request(row_id: int = 0, length: int = 4, *, arrival: float = 0.0, max_tokens: int = 8, **others: Any) -> Request:
    """`others` as Request has them."""
    others = {"sampling": SamplingParams(max_tokens=max_tokens)} | others
    return Request(row_id, tuple(range(length)), times=Times(arrival), **others)


def requests(*lengths: int) -> list[Request]:
    """One of each length, in the order of their arrival."""
    return [request(row_id, length) for row_id, length in enumerate(lengths)]


BatcherT = TypeVar("BatcherT", bound=Batcher)


def filled(batcher: BatcherT, waiting: Iterable[Request]) -> BatcherT:
    for one in waiting:
        batcher.add(one, one.times.arrival)
    return batcher


def rows_of(plan: Plan | None) -> list[int]:
    return [] if plan is None else [one.row_id for one in plan.requests]


def kit(limits: BatchLimits, **others: Any) -> BatcherParts:
    """First come, first served, by the scale of memory, unless `others` as BatcherParts has them."""
    terms = Plan(()).terms
    parts = BatcherParts(lambda: RankedQueue(Fcfs()), MEMORIES["scale"], limits, terms, Returns.ROW_END)
    return replace(parts, **others)


def worker(*held: Request, index: int = 0, **size: int) -> Worker:
    """An executor, with the sizes of a port, that holds some requests already."""
    return Worker(port(index, **size), {one.row_id: one for one in held})


def token(row_id: int, *tokens: int, end: FinishReason | None = None, text: str = "") -> RowUpdate:
    """Update that a step brings to a row; `end` with ERROR brings an error instead."""
    error = "it broke" if end is FinishReason.ERROR else None
    return RowUpdate(row_id, tokens, text, finish_reason=end, error=error)


def admitted(commands: Iterable[Command]) -> list[list[int]]:
    """The rows of each Admit."""
    return [[spec.row_id for spec in command.rows] for command in commands if isinstance(command, Admit)]


def cancelled(commands: Iterable[Command]) -> list[int]:
    return [row_id for command in commands if isinstance(command, Cancel) for row_id in command.row_ids]


ONE_AT_A_TIME = BatchLimits(group_tokens=100, prefill_ahead=0)


class Stage:
    """A dispatcher between a clock that a test moves and executors that it plays."""

    def __init__(
        self,
        *ports: FakePort,
        parts: SchedulerParts | None = None,
        strategy: str = "baton-pd",
        limits: BatchLimits = ONE_AT_A_TIME,
        prices: Bilinear | None = None,
        **others: Any,
    ) -> None:
        """`others` as Dispatcher has them."""
        self.ports = ports or (port(),)
        self.clock = VirtualClock()
        parts = parts or assemble(STRATEGIES[strategy], limits, prices)
        self.dispatcher = Dispatcher(parts, self.ports, self.clock, **others)

    def submit(self, length: int = 4, *, most: int = 8, **known: Any) -> Request:
        return self.dispatcher.submit(range(length), SamplingParams(max_tokens=most), **known)

    def report(self, *updates: RowUpdate, executor: int = 0, now: float | None = None) -> None:
        self.clock.time = self.clock.time if now is None else now
        self.dispatcher.receive(self.ports[executor].report(*updates))

    def hand_back(self, cause: Cause, *row_ids: int, dropped: tuple[int, ...] = (), executor: int = 0) -> None:
        handed_back = (HandedBack(row_ids, cause, dropped),)
        self.dispatcher.receive(replace(self.ports[executor].report(), handed_back=handed_back))

    def dispatch(self, executor: int = 0) -> list[list[int]]:
        """The groups that an executor is sent now."""
        self.dispatcher.dispatch()
        return admitted(self.ports[executor].take())


async def steps(count: Callable[[], int], until: int) -> list[int]:
    """What is done in each turn of the loop, until so much is."""
    counts = [0]
    while counts[-1] < until:
        await asyncio.sleep(0)
        counts.append(count())
    return [after - before for before, after in pairwise(counts)]


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
