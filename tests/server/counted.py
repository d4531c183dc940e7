"""Metrics with everything behind them that may publish something, real parts on a clock that the test moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.journal.writer import Journal
from scheduler.learner import Learner, Lesson
from scheduler.length.cache import CachedPredictor, LengthCache
from scheduler.length.features import FloatMatrix
from scheduler.length.forest import Examples
from scheduler.length.learning import Learning, LengthHistory, ServedRow
from scheduler.length.microbatch import MicroBatcher
from scheduler.strategy import STRATEGIES
from server.config import FrontConfig
from server.dashboard.feed import Feed
from server.lengths.lengths import Lengths
from server.observe.gauges import Gauges
from server.observe.metrics import MetricsCollector
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


def _taught() -> Learner[int]:
    """What has learned twice how long batches take."""
    learner = Learner[int]("serving times", lambda rows: Lesson(20, 12, 0.75))
    learner.begin()
    learner.begin()
    return learner


async def _train(training: Examples, judges: Sequence[ServedRow]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Counted:
    """Metrics, and the dispatcher and executors that move them."""

    metrics: MetricsCollector
    dispatcher: Dispatcher
    ports: tuple[FakePort, ...]
    clock: VirtualClock

    def read(self, name: str, **labels: str) -> float | None:
        return read(self.metrics, name, **labels)


def read(metrics: MetricsCollector, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


def check(metrics: MetricsCollector, told: Mapping[str, float], **labels: str) -> None:
    """Assert that metrics of these names, `lengthwise:` but where another is named, have these values."""
    names = {name: name if ":" in name else f"lengthwise:{name}" for name in told}
    labels = {"model_name": "m", **labels}
    found = {name: metrics.registry.get_sample_value(full, labels) for name, full in names.items()}
    assert found == pytest.approx(told)


async def counted() -> Counted:
    """Two executors; one lesson has been learned, and two predictions came too late."""
    clock, ports = VirtualClock(), (port(0), port(1))
    metrics = MetricsCollector("m", clock.now)
    limits = BatchLimits(group_tokens=100, prefill_ahead=0)
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], limits), ports, clock, (metrics,))
    lengths = await _lengths(clock)
    store = cast(HostStore[Any], Store())
    Gauges(metrics, dispatcher, lengths, Feed(), store, PrefixCache(0), _taught())
    return Counted(metrics, dispatcher, ports, clock)


async def _lengths(clock: VirtualClock) -> Lengths:
    front = MicroBatcher(FakePredictor(), LengthHistory(), time_limit=0.0)
    await front.predict(query())
    await front.predict(query())
    learning = Learning(_train, clock)
    learning.add(ServedRow((1.0,), predicted=13.0, generated=10))
    await learning.learn()
    cached = CachedPredictor(FakePredictor(), embed_nothing, LengthCache(4))
    journal = cast(Journal, Recorded())
    return Lengths(FrontConfig(strategy="baton-pd"), "m", journal, front, learning, cached)


async def embed_nothing(texts: Sequence[str]) -> FloatMatrix:
    raise AssertionError(f"nothing is looked up: {texts}")
