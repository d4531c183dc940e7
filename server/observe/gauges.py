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

from scheduler.serving_time.learning import Lesson
from scheduler.worker import Worker
from server.lengths.lengths import PredictorParts
from server.observe.metrics import Metrics
from server.observe.queue import Queue
from server.version import VERSION

Value: TypeAlias = tuple[Mapping[str, str], float]
"""Labels beside the common ones, and a number."""


class Store(Protocol):
    """The part of engine.kv.host_store.HostStore that is read."""

    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Viewers(Protocol):
    """The part of server.dashboard.feed.Feed that is read."""

    @property
    def viewers(self) -> int: ...


class ServingTimes(Protocol):
    """The part of what learns serving times that is read."""

    latest: Lesson | None
    changes: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers come from."""

    dispatcher: Queue
    store: Store
    learned: PredictorParts
    strategy: str
    feed: Viewers
    serving_times: ServingTimes | None = None
    """None where serving times are not learned."""


class Gauges(Collector):
    """Registers itself beside what the metrics count."""

    def __init__(self, metrics: Metrics, sources: Sources) -> None:
        self._metrics = metrics
        self._sources = sources
        metrics.registry.register(self)
        metrics.expect(worker.info.index for worker in sources.dispatcher.workers)
        ProcessCollector(registry=metrics.registry)  # memory, CPU time and open files, under the usual names

    def collect(self) -> Iterator[Metric]:
        yield from self._queue()
        yield from self._executors()
        yield from self._memory()
        yield from self._predictions()
        yield from self._serving_times()

    def _queue(self) -> Iterator[Metric]:
        dispatcher, sources = self._sources.dispatcher, self._sources
        tokens = sum(request.input_length for request in chain(dispatcher.waiting, dispatcher.not_begun))
        yield self._gauge(
            "vllm:num_requests_waiting", "Requests that nothing has been read of.", dispatcher.requests_waiting
        )
        yield self._gauge(
            "vllm:num_requests_running", "Requests that executors have begun.", dispatcher.requests_running
        )
        yield self._gauge("lengthwise:waiting_prompt_tokens", "Prompt tokens of what waits.", tokens)
        yield self._gauge("lengthwise:dashboard_viewers", "Open dashboards.", sources.feed.viewers)
        info = {"version": VERSION, "strategy": sources.strategy}
        yield self._gauges("lengthwise:info", "Always 1; its labels tell what serves.", [(info, 1.0)])

    def _executors(self) -> Iterator[Metric]:
        workers = self._sources.dispatcher.workers
        for name, text, read in (
            ("lengthwise:executor_up", "Whether an executor lives.", _up),
            ("lengthwise:executor_rows", "Rows of its batch.", lambda worker: worker.batch.rows),
            ("lengthwise:executor_slots", "Most rows of its batch.", lambda worker: worker.info.max_rows),
            ("lengthwise:staged_rows", "Rows that have K and V and wait for a slot.", lambda one: one.batch.staged),
            ("lengthwise:kv_capacity_tokens", "Tokens of K and V it can hold.", lambda one: one.capacity_tokens),
            ("lengthwise:predicted_load_seconds", "Predicted time of the plans it has.", lambda worker: worker.load),
            ("lengthwise:step_age_seconds", "Since its last sign of life, while it has work.", self._age),
        ):
            yield self._gauges(name, text, [({"executor": str(one.info.index)}, float(read(one))) for one in workers])
        usage = [({"engine": str(worker.info.index)}, _usage(worker)) for worker in workers]
        yield self._gauges("vllm:kv_cache_usage_perc", "Part of its K and V cells that its batch takes.", usage)

    def _memory(self) -> Iterator[Metric]:
        store = self._sources.store
        yield self._gauge("lengthwise:host_memory_bytes", "K and V of rows that wait, in host memory.", store.bytes)
        yield self._gauge("lengthwise:host_memory_rows", "Rows that were handed back.", len(store))

    def _predictions(self) -> Iterator[Metric]:
        learned = self._sources.learned
        if (front := learned.front) is not None:
            sources = [({"source": str(source)}, float(count)) for source, count in front.sources.items()]
            yield self._counters("lengthwise:predictions", "Predicted lengths, by what they come from.", sources)
            for name, text, count in (
                ("lengthwise:prediction_timeouts", "Requests that went on without waiting longer.", front.timeouts),
                ("lengthwise:predictions_declined", "Requests that did not even wait.", front.declined),
                ("lengthwise:predictions_deferred", "Requests that had nothing to wait for.", front.deferred),
                ("lengthwise:prediction_failures", "Batches that the predictor failed.", front.failures),
            ):
                yield self._counters(name, text, [({}, float(count))])
        if (cached := learned.cached) is not None:
            yield self._counters("lengthwise:length_cache_lookups", "Looks into it.", [({}, float(cached.lookups))])
            yield self._counters("lengthwise:length_cache_hits", "Looks that found it.", [({}, float(cached.hits))])
        if learned.lessons:
            text = "Error of the predictions in the interval before the latest lesson."
            yield self._gauge("lengthwise:length_rmse_tokens", text, learned.lessons[-1].rmse)

    def _serving_times(self) -> Iterator[Metric]:
        learning = self._sources.serving_times
        if learning is None:
            return
        text = "Times that estimates were learned from what batches took."
        yield self._counters("lengthwise:serving_time_lessons", text, [({}, float(learning.changes))])
        if (latest := learning.latest) is not None:
            text = "Error of the estimates in the interval before the latest lesson."
            yield self._gauge("lengthwise:serving_time_rmse_seconds", text, latest.rmse)

    def _age(self, worker: Worker) -> float:
        """Seconds since an executor with work last reported, or was given it: an idle one does not report."""
        if worker.lost or not worker.busy:
            return 0.0
        given = min(assignment.sent for assignment in worker.assignments.values())
        reported = self._metrics.last_report(worker.info.index)
        return max(0.0, self._sources.dispatcher.now() - max(given, reported or given))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._gauges(name, text, [({}, value)])

    def _gauges(self, name: str, text: str, values: Sequence[Value]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._names(values))
        for labels, value in values:
            family.add_metric([*self._metrics.labels.values(), *labels.values()], value)
        return family

    def _counters(self, name: str, text: str, values: Sequence[Value]) -> Metric:
        family = CounterMetricFamily(name, text, labels=self._names(values))
        for labels, value in values:
            family.add_metric([*self._metrics.labels.values(), *labels.values()], value)
        return family

    def _names(self, values: Sequence[Value]) -> list[str]:
        return [*self._metrics.labels, *(values[0][0] if values else ())]


def _up(worker: Worker) -> bool:
    return worker.port.alive and not worker.lost


def _usage(worker: Worker) -> float:
    shape = worker.batch
    return shape.rows * (shape.end - shape.start) / worker.capacity_tokens if worker.capacity_tokens else 0.0
