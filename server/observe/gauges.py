"""Gauges read at scrapes, the event loop's lag, and the log's throughput line."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from prometheus_client import Metric, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily as Counter, GaugeMetricFamily as Gauge
from prometheus_client.registry import Collector

from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import CHUNK, PrefixCache
from scheduler.dispatcher import Dispatcher
from scheduler.learner import Learner
from scheduler.request_table import RequestTable
from scheduler.worker import Worker
from server.dashboard.feed import Feed
from server.lengths.lengths import Lengths
from server.observe.families import FAMILIES
from server.observe.logs import count_dropped, with_fields
from server.observe.metrics import MetricsCollector
from server.version import VERSION

log = logging.getLogger(__name__)

KINDS: Mapping[str, type[Gauge] | type[Counter]] = {"gauge": Gauge, "counter": Counter}


@dataclass(eq=False, slots=True)
class Gauges(Collector):
    """Registers itself."""

    metrics: MetricsCollector
    dispatcher: Dispatcher
    lengths: Lengths
    feed: Feed
    store: HostStore[Any] | None = None
    prefixes: PrefixCache[Any] | None = None  # None, as the store, in a gateway
    serving_times: Learner[Any] | None = None  # None if not learned

    def __post_init__(self) -> None:
        registry = self.metrics.registry
        registry.register(self)
        self.metrics.expect(worker.index for worker in self.dispatcher.workers)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterator[Metric]:
        for path, (kind, name, text) in FAMILIES["parts"].items():
            found: Any = self
            for part in path.split("."):
                found = None if found is None else getattr(found, part)
            if found is not None:
                yield KINDS[kind](name, text, found)
        waiting = chain(self.dispatcher.waiting, self.dispatcher.table.not_begun)
        yield _family(Gauge, "lengthwise:waiting_prompt_tokens", sum(len(one.prompt) for one in waiting))
        if (front := self.lengths.front) is not None:
            sources = [({"source": str(source)}, float(count)) for source, count in front.sources.items()]
            yield _family(Counter, "lengthwise:predictions", sources)
        if self.store is not None:
            yield _family(Gauge, "lengthwise:host_memory_rows", len(self.store))
        yield _family(Counter, "lengthwise:log_lines_dropped", count_dropped())
        yield from self._order()
        yield from self._executors()

    def _order(self) -> Iterator[Metric]:
        if (means := self.dispatcher.waits.by_arrival) is None:
            return
        for name, served, by_arrival in (
            ("latency", means.latency, means.latency_by_arrival),
            ("normalized_latency", means.normalized, means.normalized_by_arrival),
        ):
            values = [({"order": "served"}, served), ({"order": "arrival"}, by_arrival)]
            yield _family(Gauge, f"lengthwise:order_{name}_seconds", values)
        yield _family(Gauge, "lengthwise:order_latest_seconds", means.latest)

    def _executors(self) -> Iterator[Metric]:
        info = {"version": VERSION, "strategy": self.lengths.config.strategy}
        yield _family(Gauge, "lengthwise:info", [(info, 1.0)])
        workers = self.dispatcher.workers
        capacity = sum(worker.info.capacity_tokens for worker in workers)
        blocks = {"block_size": str(CHUNK), "num_gpu_blocks": str(capacity // CHUNK)}
        yield _family(Gauge, "vllm:cache_config_info", [(blocks, 1.0)])
        for path, (name, text) in FAMILIES["executors"].items():
            yield _family(Gauge, f"lengthwise:{name}", _by_executor(attrgetter(path), workers), text)
        yield _family(Gauge, "lengthwise:step_age_seconds", _by_executor(self._age, workers))

    def _age(self, worker: Worker) -> float:
        if worker.lost or not worker.requests:
            return 0.0
        given = min(assignment.sent for assignment in worker.assignments.values())
        return max(0.0, self.dispatcher.now() - max(given, self.metrics.reported.get(worker.index, given)))


Values = Sequence[tuple[Mapping[str, str], float]]  # with labels


def _by_executor(read: Callable[[Worker], float], workers: Iterable[Worker]) -> Values:
    return [({"executor": str(worker.index)}, float(read(worker))) for worker in workers]


def _family(kind: type[Gauge] | type[Counter], name: str, values: Values | float, text: str = "") -> Metric:
    text = text or FAMILIES["single"][name]
    if not isinstance(values, Sequence):
        return kind(name, text, values)
    family = kind(name, text, labels=list(values[0][0]) if values else ())
    for labels, value in values:
        family.add_metric(list(labels.values()), value)
    return family


LAG_INTERVAL = 0.25  # seconds, between looks at the event loop's


INTERVAL = 10.0  # seconds, as in vLLM


async def log_throughput(metrics: MetricsCollector, load: RequestTable) -> None:
    loop, before = asyncio.get_running_loop(), metrics.tokens
    begin = loop.time()
    while True:
        await asyncio.sleep(INTERVAL)
        now, tokens = loop.time(), metrics.tokens
        seconds = now - begin
        log_load(load, (tokens.prompt - before.prompt) / seconds, (tokens.generated - before.generated) / seconds)
        begin, before = now, tokens


def log_load(load: RequestTable, read: float, generated: float) -> None:
    running, waiting, usage = load.requests_running, load.requests_waiting, load.kv_usage
    if not (running or waiting or read or generated):
        return
    speed = f"tokens/s: {generated:.1f} generated, {read:.1f} of prompts"
    speeds = {"generated_tokens_per_s": round(generated, 1), "prompt_tokens_per_s": round(read, 1)}
    fields = with_fields(running=running, waiting=waiting, **speeds, kv_usage=round(usage, 3))
    log.info("%d running, %d waiting; %s; KV cache %.0f %% full", running, waiting, speed, 100 * usage, extra=fields)
