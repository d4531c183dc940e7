"""GET /metrics: what the server counts, in the Prometheus text format; vLLM's names where the meaning is the same.

It watches reports and ended requests go by, and changes nothing.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import ExecutorDied, FinishReason, Report, StepReport
from scheduler.request import Request
from server.service import SERVICE, Generator

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """A scheduler.ledger.Ledger, and a reader of the executors' reports. Event loop only."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model}
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens that were read.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens that went into answers.")
        self._success = self._counter("vllm:request_success", "Requests that ended well.", "finished_reason")
        self._failed = self._counter(
            "lengthwise:request_failure", "Requests that ended with an error, or unwanted.", "kind"
        )
        self._pad = self._counter("lengthwise:pad_tokens", "Cells of prefills and shape entries that held no token.")
        self._invalid = self._counter("lengthwise:invalid_tokens", "Tokens made for rows that had ended.")
        self._busy = self._counter("lengthwise:executor_busy_seconds", "Seconds that an executor computed.", "executor")
        self._deaths = self._counter("lengthwise:executor_deaths", "Executors that are gone.")
        self._rows = self._histogram("lengthwise:batch_rows", "Rows of the batch at each decode step.", ROWS)
        self._step = self._histogram("lengthwise:step_seconds", "Duration of an executor's turns.", SECONDS)
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", SECONDS)
        self._latency = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", SECONDS)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to start.", SECONDS)
        self._length = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", TOKENS)
        self._error = self._histogram(
            "lengthwise:predicted_length_error_tokens", "Distance of the predicted from the true length.", TOKENS
        )

    def watch(self, dispatcher: Generator) -> None:
        """Tell the queue's length, too, as it is when somebody asks."""
        for name, text, read in (
            ("vllm:num_requests_waiting", "Requests that no executor has.", lambda: dispatcher.requests_waiting),
            ("vllm:num_requests_running", "Requests that an executor has.", lambda: dispatcher.requests_running),
        ):
            gauge = Gauge(name, text, list(self._labels), registry=self.registry)
            gauge.labels(**self._labels).set_function(read)

    def reported(self, report: Report) -> None:
        """An executor has reported."""
        match report:
            case StepReport():
                self._count(report)
            case ExecutorDied():
                self._deaths.labels(**self._labels).inc()

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended; without a reason nobody wanted its answer any more."""
        if reason is None or reason is FinishReason.ERROR:
            self._failed.labels(**self._labels, kind=reason or "cancelled").inc()
            return
        times = request.times
        self._success.labels(**self._labels, finished_reason=reason).inc()
        self._length.labels(**self._labels).observe(request.generated)
        for histogram, moment in ((self._queue, times.started), (self._first, times.first_token), (self._latency, now)):
            if moment is not None:
                histogram.labels(**self._labels).observe(moment - times.arrival)
        if request.predicted_length is not None:
            self._error.labels(**self._labels).observe(abs(request.predicted_length - request.generated))

    def _count(self, report: StepReport) -> None:
        tally = report.tally
        self._prompt.labels(**self._labels).inc(tally.prompt)
        self._generated.labels(**self._labels).inc(tally.generated)
        self._pad.labels(**self._labels).inc(tally.pad)
        self._invalid.labels(**self._labels).inc(tally.invalid)
        self._busy.labels(**self._labels, executor=str(report.executor)).inc(report.seconds)
        self._step.labels(**self._labels).observe(report.seconds)
        if not tally.prompt and tally.generated:
            self._rows.labels(**self._labels).observe(tally.generated + tally.invalid)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, [*self._labels, *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, list(self._labels), buckets=buckets, registry=self.registry)


async def metrics(request: web.Request) -> web.Response:
    """Everything counted so far; 404 where nothing is."""
    counted = request.app[SERVICE].metrics
    if counted is None:
        raise web.HTTPNotFound
    return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
