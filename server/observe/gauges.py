"""Gauges of /metrics, read at the moment of a scrape: queues, executors, memory, predictors.

It reads the parts and keeps nothing, so between two scrapes it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeAlias

from prometheus_client import Metric, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.kv.prefix_cache import CHUNK
from scheduler.dispatcher import Dispatcher
from scheduler.serving_time.machine import Lesson
from scheduler.worker import Worker
from server.dashboard.feed import Feed
from server.lengths.lengths import PredictorParts
from server.observe.logs import count_dropped
from server.observe.metrics import Metrics
from server.version import VERSION

Row: TypeAlias = tuple[str, str, float]
"""A metric without labels: name, text, number."""


class Store(Protocol):
    """The part of engine.kv.host_store.HostStore that is read."""

    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Prefixes(Protocol):
    """The part of engine.kv.prefix_cache.PrefixCache that is read."""

    queries: int
    hits: int

    @property
    def bytes(self) -> int: ...


class ServingTimes(Protocol):
    """The part of what learns serving times that is read."""

    latest: Lesson | None
    changes: int


class Journal(Protocol):
    """The part of scheduler.journal.writer.Journal that is read."""

    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers come from."""

    dispatcher: Dispatcher
    store: Store
    prefixes: Prefixes
    learned: PredictorParts
    strategy: str
    feed: Feed
    serving_times: ServingTimes | None = None
    """None where serving times are not learned."""
    journal: Journal | None = None
    """None where nothing is recorded."""


class Gauges(Collector):
    """Registers itself beside what the metrics count."""

    def __init__(self, metrics: Metrics, sources: Sources) -> None:
        self._metrics = metrics
        self._sources = sources
        metrics.registry.register(self)
        metrics.expect(worker.info.index for worker in sources.dispatcher.workers)
        ProcessCollector(registry=metrics.registry)  # memory, CPU time and open files, under the usual names

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (*self._queue(), *self._memory(), *self._errors()):
            yield _family(GaugeMetricFamily, name, text, [({}, value)])
        yield from self._executors()
        for name, text, count in self._counts():
            yield _family(CounterMetricFamily, name, text, [({}, count)])
        if (front := self._sources.learned.front) is not None:
            sources = [({"source": str(source)}, float(count)) for source, count in front.sources.items()]
            text = "Predicted lengths, by what they come from."
            yield _family(CounterMetricFamily, "lengthwise:predictions", text, sources)

    def _queue(self) -> Iterator[Row]:
        dispatcher = self._sources.dispatcher
        tokens = sum(request.input_length for request in chain(dispatcher.waiting, dispatcher.not_begun))
        yield "vllm:num_requests_waiting", "Requests that nothing has been read of.", dispatcher.requests_waiting
        yield "vllm:num_requests_running", "Requests that executors have begun.", dispatcher.requests_running
        text = "Part of all executors' cells of K and V that their batches take."
        yield "vllm:kv_cache_usage_perc", text, dispatcher.kv_usage
        yield "lengthwise:waiting_prompt_tokens", "Prompt tokens of what waits.", tokens
        yield "lengthwise:dashboard_viewers", "Open dashboards.", self._sources.feed.viewers

    def _memory(self) -> Iterator[Row]:
        store = self._sources.store
        yield "lengthwise:host_memory_bytes", "K and V of rows that wait, in host memory.", store.bytes
        yield "lengthwise:host_memory_rows", "Rows that were handed back.", len(store)
        text = "K and V of prompts that may come again, in host memory."
        yield "lengthwise:prefix_cache_bytes", text, self._sources.prefixes.bytes

    def _errors(self) -> Iterator[Row]:
        if lessons := self._sources.learned.lessons:
            text = "Error of the predictions in the interval before the latest lesson."
            yield "lengthwise:length_rmse_tokens", text, lessons[-1].rmse
        learning = self._sources.serving_times
        if learning is not None and (latest := learning.latest) is not None:
            text = "Error of the estimates in the interval before the latest lesson."
            yield "lengthwise:serving_time_rmse_seconds", text, latest.rmse

    def _counts(self) -> Iterator[Row]:
        learned, learning = self._sources.learned, self._sources.serving_times
        prefixes = self._sources.prefixes
        yield "vllm:prefix_cache_queries", "Tokens of prompts that were to be read.", prefixes.queries
        yield "vllm:prefix_cache_hits", "Tokens of them that were copied in place of being read.", prefixes.hits
        if (journal := self._sources.journal) is not None:
            yield "lengthwise:journal_written", "Entries that are in the journal.", journal.written
            yield (
                "lengthwise:journal_lost",
                "Entries that could not be written, and found no room to wait.",
                journal.lost,
            )
        yield "lengthwise:log_lines_dropped", "Lines of the log that found no room to wait.", count_dropped()
        if (front := learned.front) is not None:
            yield "lengthwise:prediction_timeouts", "Requests that went on without waiting longer.", front.timeouts
            yield "lengthwise:prediction_failures", "Batches that the predictor failed.", front.failures
        if (cached := learned.cached) is not None:
            yield "lengthwise:length_cache_lookups", "Looks into it.", cached.lookups
            yield "lengthwise:length_cache_hits", "Looks that found it.", cached.hits
        if learning is not None:
            text = "Lessons that changed what steps, or batches, are expected to take."
            yield "lengthwise:serving_time_lessons", text, learning.changes

    def _executors(self) -> Iterator[Metric]:
        info = {"version": VERSION, "strategy": self._sources.strategy}
        yield _family(GaugeMetricFamily, "lengthwise:info", "Always 1; its labels tell what serves.", [(info, 1.0)])
        capacity = sum(worker.info.capacity_tokens for worker in self._sources.dispatcher.workers)
        blocks = {"block_size": str(CHUNK), "num_gpu_blocks": str(capacity // CHUNK)}
        text = "Always 1; its labels tell how many tokens of K and V a block holds, and how many blocks there are."
        yield _family(GaugeMetricFamily, "vllm:cache_config_info", text, [(blocks, 1.0)])
        for name, text, read in (
            ("lengthwise:executor_up", "Whether an executor takes rows.", lambda worker: worker.serves),
            ("lengthwise:executor_rows", "Rows of its batch.", lambda worker: worker.shape.rows),
            ("lengthwise:executor_slots", "Most rows of its batch.", lambda worker: worker.info.max_rows),
            ("lengthwise:staged_rows", "Rows that have K and V and wait for a slot.", _staged),
            ("lengthwise:kv_capacity_tokens", "Tokens of K and V it can hold.", lambda worker: worker.capacity_tokens),
            ("lengthwise:predicted_load_seconds", "Predicted time of the plans it has.", lambda worker: worker.load),
            ("lengthwise:step_age_seconds", "Since its last sign of life, while it has work.", self._age),
            ("lengthwise:kv_used_tokens", "Cells of K and V that its batch takes.", lambda worker: worker.used_tokens),
        ):
            workers = self._sources.dispatcher.workers
            values = [({"executor": str(worker.info.index)}, float(read(worker))) for worker in workers]
            yield _family(GaugeMetricFamily, name, text, values)

    def _age(self, worker: Worker) -> float:
        """Seconds since an executor with work last reported, or was given it: an idle one does not report."""
        if worker.lost or not worker.busy:
            return 0.0
        given = min(assignment.sent for assignment in worker.assignments.values())
        reported = self._metrics.last_report(worker.info.index)
        return max(0.0, self._sources.dispatcher.now() - max(given, reported or given))


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    values: Sequence[tuple[Mapping[str, str], float]],
) -> Metric:
    """One metric, as labels and a number each; all of them have the same labels."""
    family = kind(name, text, labels=list(values[0][0]) if values else ())
    for labels, value in values:
        family.add_metric(list(labels.values()), value)
    return family


def _staged(worker: Worker) -> int:
    return worker.shape.staged
