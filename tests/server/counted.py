"""Metrics with everything behind them that may publish something, real parts on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.kv.prefix_cache import PrefixCache
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.dispatcher import Dispatcher
from scheduler.length.cache import LengthCache
from scheduler.length.forest import Examples
from scheduler.length.history import LengthHistory
from scheduler.length.learning import Learning, ServedRow
from scheduler.length.microbatch import MicroBatcher
from scheduler.serving_time.machine import Lesson
from scheduler.strategy import STRATEGIES
from server.dashboard.feed import Feed
from server.lengths.lengths import PredictorParts
from server.observe.gauges import Gauges, Sources
from server.observe.metrics import Metrics
from tests.scheduler.fakes import FakePort, VirtualClock, port
from tests.scheduler.length.test_microbatch import FakePredictor, query


@dataclass(frozen=True, slots=True)
class Store:
    """Host memory."""

    rows: int = 2
    bytes: int = 4096

    def __len__(self) -> int:
        return self.rows


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal that was not always writable."""

    written: int = 7
    lost: int = 3


@dataclass(slots=True)
class Taught:
    """Who learned twice how long batches take."""

    latest: Lesson | None = field(default_factory=lambda: Lesson(20, 12, 0.75))
    changes: int = 2


class Trainer:
    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Counted:
    """Metrics, and the dispatcher and executors that move them."""

    metrics: Metrics
    dispatcher: Dispatcher
    ports: tuple[FakePort, ...]
    clock: VirtualClock

    def read(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


async def counted() -> Counted:
    """Two executors; one lesson has been learned, and two predictions came too late."""
    clock, ports = VirtualClock(), (port(0), port(1))
    metrics = Metrics("m", clock.now)
    limits = Limits(group_tokens=100, prefill_ahead=0)
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], limits), ports, clock, metrics)
    learned, store = await _learned(clock), Store()
    sources = Sources(dispatcher, store, PrefixCache(0), learned, "baton-pd", Feed(), Taught(), Recorded())
    Gauges(metrics, sources)
    return Counted(metrics, dispatcher, ports, clock)


async def _learned(clock: VirtualClock) -> PredictorParts:
    front = MicroBatcher(FakePredictor(), LengthHistory(), time_limit=0.0)
    await front.predict(query())
    await front.predict(query())
    learning = Learning(Trainer(), clock)
    learning.add(ServedRow((1.0,), predicted=13.0, generated=10))
    await learning.learn()
    return PredictorParts(front, learning, LengthCache(4))
