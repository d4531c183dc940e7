"""Gauges read at scrapes, the event loop's lag, and the log's throughput line."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from prometheus_client import Metric, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily as Counter
from prometheus_client.metrics_core import GaugeMetricFamily as Gauge
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
Reading = Callable[[Worker], float]

STEP_AGE = "Seconds since the executor's last report while it has work, else 0."


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
        parts = self._list_parts()
        for path, (kind, name, text) in FAMILIES["parts"].items():
            part, _, attribute = path.partition(".")
            if parts[part] is not None:
                yield KINDS[kind](name, text, getattr(parts[part], attribute))
        tokens = sum(len(one.prompt) for one in chain(self.dispatcher.waiting, self.dispatcher.table.not_begun))
        yield Gauge("lengthwise:waiting_prompt_tokens", "Prompt tokens of the requests that wait.", tokens)
        if (front := self.lengths.front) is not None:
            sources = [({"source": str(source)}, float(count)) for source, count in front.sources.items()]
            yield _family(Counter, "lengthwise:predictions", "Length predictions, by what made them.", sources)
        if (store := self.store) is not None:
            text = "Preempted sequences whose KV cache is in host memory."
            yield Gauge("lengthwise:host_memory_rows", text, len(store))
        text = "Log lines dropped because nobody read the log."
        yield Counter("lengthwise:log_lines_dropped", text, count_dropped())
        yield from self._order()
        yield from self._executors()

    def _list_parts(self) -> Mapping[str, object | None]:
        lengths, times = self.lengths, self.serving_times
        return {
            "table": self.dispatcher.table,
            "feed": self.feed,
            "front": lengths.front,
            "cache": lengths.cached and lengths.cached.cache,
            "lesson": lengths.lesson,
            "calibration": self.dispatcher.table.calibration,
            "times": times,
            "latest": times and times.latest,
            "store": self.store,
            "prefixes": self.prefixes,
            "journal": lengths.journal,
        }

    def _order(self) -> Iterator[Metric]:
        if (means := self.dispatcher.waits.by_arrival) is None:
            return
        latency = "Mean seconds from arrival to the last token"
        for name, text, served, by_arrival in (
            ("latency", latency, means.latency, means.latency_by_arrival),
            ("normalized_latency", f"{latency} / tokens", means.normalized, means.normalized_by_arrival),
        ):
            values = [({"order": "served"}, served), ({"order": "arrival"}, by_arrival)]
            text = f"{text}, of the latest answers: as served, and replayed in order of arrival."
            yield _family(Gauge, f"lengthwise:order_{name}_seconds", text, values)
        text = "Most seconds that one of the latest answers ended later than in order of arrival, as replayed."
        yield Gauge("lengthwise:order_latest_seconds", text, means.latest)

    def _executors(self) -> Iterator[Metric]:
        info = {"version": VERSION, "strategy": self.lengths.config.strategy}
        text = "Always 1; the labels are the version and the strategy."
        yield _family(Gauge, "lengthwise:info", text, [(info, 1.0)])
        capacity = sum(worker.info.capacity_tokens for worker in self.dispatcher.workers)
        blocks = {"block_size": str(CHUNK), "num_gpu_blocks": str(capacity // CHUNK)}
        text = "Always 1; the labels are the tokens of a KV cache block, and the number of blocks."
        yield _family(Gauge, "vllm:cache_config_info", text, [(blocks, 1.0)])
        workers = self.dispatcher.workers
        listed = FAMILIES["executors"].items()
        gauges: list[tuple[str, Reading, str]] = [(name, attrgetter(path), text) for path, (name, text) in listed]
        for name, read, text in (*gauges, ("step_age_seconds", self._age, STEP_AGE)):
            values = [({"executor": str(worker.index)}, float(read(worker))) for worker in workers]
            yield _family(Gauge, f"lengthwise:{name}", text, values)

    def _age(self, worker: Worker) -> float:
        if worker.lost or not worker.requests:
            return 0.0
        given = min(assignment.sent for assignment in worker.assignments.values())
        return max(0.0, self.dispatcher.now() - max(given, self.metrics.reported.get(worker.index, given)))


def _family(
    kind: type[Gauge] | type[Counter], name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]
) -> Metric:
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
    fields = with_fields(
        running=running,
        waiting=waiting,
        generated_tokens_per_s=round(generated, 1),
        prompt_tokens_per_s=round(read, 1),
        kv_usage=round(usage, 3),
    )
    log.info("%d running, %d waiting; %s; KV cache %.0f %% full", running, waiting, speed, 100 * usage, extra=fields)
