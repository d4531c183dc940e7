"""GET /metrics in Prometheus format, with vLLM's names where meanings agree (docs/observability.md); gauges.py reads
the rest.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter as Tallies
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, product
from math import inf

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.messages import Cause, ExecutorDied, FinishReason, Report, RowId, StepReport, StepStats
from scheduler.length.evaluation import can_be_judged, is_inside, within_twice
from scheduler.plan import Assignment
from scheduler.request import Failure, Request
from scheduler.wait_estimate.completion import LEAST_SECONDS, Expected
from scheduler.waiting.fair import service_had

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
RUNS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

GOOD = (FinishReason.STOP, FinishReason.LENGTH)
FAILURES = (*Failure, FinishReason.ERROR, "cancelled")

MOST_CLIENTS = 64  # with own labels
FORGOTTEN = 600.0  # seconds without a token after which a row is gone

REASONS = (
    "deadline_unreachable",
    "executor_failed",
    "queue_full",
    "rate_limit_exceeded",
    "server_shutting_down",
    "too_many_large_bodies",
)

LABELS: Mapping[str, Mapping[str, Iterable[str]]] = {
    "vllm:request_success": {"finished_reason": GOOD},
    "lengthwise:request_failure": {"kind": FAILURES},
    "vllm:admission_rejections": {"reason": REASONS},
    "lengthwise:http_responses": {"method": (), "route": (), "status": ()},
    "lengthwise:client_service_tokens": {"client": ("all",)},
    "lengthwise:pad_tokens": {"phase": ("prefill", "decode")},
    "lengthwise:executor_busy_seconds": {"executor": ()},
    "lengthwise:handed_back_rows": {"cause": Cause, "kv": ("kept", "dropped")},
    "lengthwise:predicted_intervals": {"inside": ("true", "false")},
    "lengthwise:eta_answers": {"interval": ("inside", "below", "above")},
}  # values known beforehand start at 0

COUNTERS: Mapping[str, str] = {
    "vllm:request_success": "Requests that ended with a complete answer, or at their token limit.",
    "lengthwise:request_failure": "Requests that failed, or whose client left.",
    "vllm:admission_rejections": "Calls refused with 429 or 503, by the code of the error.",
    "lengthwise:http_responses": "HTTP responses.",
    "lengthwise:client_service_tokens": "Service to each client: 1 for a prompt token, 2 for a generated one.",
    "vllm:prompt_tokens": "Prompt tokens read.",
    "vllm:generation_tokens": "Tokens generated for answers.",
    "lengthwise:pad_tokens": "Padding: cells computed or read that held no token of their sequence.",
    "lengthwise:decode_reads": "Cells of keys and values read by decode steps: rows times columns.",
    "lengthwise:invalid_tokens": "Tokens generated for sequences that had ended but kept their slot.",
    "lengthwise:executor_busy_seconds": "Seconds during which an executor was computing.",
    "lengthwise:executor_deaths": "Executors that died.",
    "vllm:num_preemptions": "Running sequences that were paused or handed back for lack of memory or for priority.",
    "lengthwise:handed_back_rows": "Sequences returned to the queue before their end, by cause and fate of K/V.",
    "lengthwise:overpredicted_tokens": "Tokens that were predicted and not generated, of judged answers.",
    "lengthwise:underpredicted_tokens": "Tokens that were generated and not predicted, of judged answers.",
    "lengthwise:predicted_within_twice": "Judged answers whose prediction was within a factor of 2.",
    "lengthwise:predicted_intervals": "Judged answers, by whether they were inside the 90 % interval.",
    "lengthwise:eta_answers": "Answers that ended inside, below or above the interval estimated at arrival.",
}  # help texts

HISTOGRAMS: Mapping[tuple[float, ...], Mapping[str, str]] = {
    SECONDS: {
        "vllm:time_to_first_token_seconds": "Seconds from a request's arrival to its first token.",
        "lengthwise:step_seconds": "Seconds of an executor's step: a chunk of a prompt, or one decode step.",
        "lengthwise:event_loop_lag_seconds": "Seconds by which the event loop woke up late, four times a second.",
        "lengthwise:prediction_seconds": "Seconds that a request waits for its length prediction.",
        "lengthwise:late_prediction_seconds": "Seconds that a request had gone on without its length prediction.",
        "lengthwise:serving_time_seconds": "Seconds taken by batches whose serving time was predicted.",
        "lengthwise:serving_time_error_seconds": "Seconds between predicted and true serving time of a batch.",
        "vllm:request_queue_time_seconds": "Seconds from a request's arrival until its prompt begins to be read.",
        "vllm:e2e_request_latency_seconds": "Seconds from a request's arrival to its last token.",
        "vllm:request_inference_time_seconds": "Seconds from the start of a request's prompt to its last token.",
        "vllm:request_prefill_time_seconds": "Seconds from the start of a request's prompt to its first token.",
        "vllm:request_decode_time_seconds": "Seconds from a request's first token to its last.",
    },
    GAPS: {
        "lengthwise:token_write_seconds": "Seconds from the making of a stream's tokens until they are written.",
        "vllm:request_time_per_output_token_seconds": "Mean seconds between two tokens of a request.",
    },
    TOKENS: {
        "vllm:request_prompt_tokens": "Prompt tokens of a request.",
        "vllm:request_generation_tokens": "Tokens of an answer, the end token included.",
        "vllm:request_params_max_tokens": "The token limit (max_tokens) of a request.",
        "lengthwise:request_predicted_tokens": "Predicted length of an answer.",
        "lengthwise:predicted_length_error_tokens": "Tokens between predicted and true length, of judged answers.",
    },
    RUNS: {"lengthwise:request_runs": "Times that a request was given to an executor, by slice or pause."},
    ROWS: {"lengthwise:batch_rows": "Sequences in the batch at each decode step."},
    STEP_TOKENS: {"vllm:iteration_tokens_total": "Tokens read and generated in one step of an executor."},
    SHARES: {
        "lengthwise:predicted_length_relative_error": "Error of the predicted length, divided by the true length.",
        "lengthwise:eta_relative_error": "Error of the latency estimated at arrival, divided by the true latency.",
    },
}  # help texts by bucket bounds

SPANS: Mapping[str, tuple[str, str]] = {
    "vllm:request_queue_time_seconds": ("arrival", "started"),
    "vllm:e2e_request_latency_seconds": ("arrival", "end"),
    "vllm:request_inference_time_seconds": ("started", "end"),
    "vllm:request_prefill_time_seconds": ("started", "first_token"),
    "vllm:request_decode_time_seconds": ("first_token", "end"),
}  # between moments in Times

GAP = "vllm:inter_token_latency_seconds"


TALLIED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("prompt", "vllm:prompt_tokens", {}),
    ("generated", "vllm:generation_tokens", {}),
    ("pad", "lengthwise:pad_tokens", {"phase": "prefill"}),
    ("pad_reads", "lengthwise:pad_tokens", {"phase": "decode"}),
    ("reads", "lengthwise:decode_reads", {}),
    ("invalid", "lengthwise:invalid_tokens", {}),
)


class Registry(CollectorRegistry):
    """Adds the model's name, and drops creation times, a fifth of all samples."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._labels = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            common = self._labels if ":" in family.name else {}
            family.samples = [
                sample._replace(labels={**common, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


class WeightedHistogram(Collector):
    """The last bucket is open."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = ["+Inf" if bound == inf else str(float(bound)) for bound in self._bounds]
        counts = [float(count) for count in accumulate(self._counts)]
        yield HistogramMetricFamily(self._name, self._text, list(zip(bounds, counts, strict=True)), self._sum)


class MetricsCollector:
    """Observes requests, batches and reports. Event loop only."""

    def __init__(self, model: str, now: Callable[[], float] = time.monotonic) -> None:
        self.registry = Registry(model)
        self.tokens = StepStats()
        self._now = now
        self._latest_tokens: dict[RowId, float] = {}
        self._swept = now()
        self.reported: dict[int, float] = {}  # when each executor reported last
        self._clients: set[str] = set()
        self._counters = {
            name: Counter(name, text, [*LABELS.get(name, ())], registry=self.registry)
            for name, text in COUNTERS.items()
        }
        for name, values in LABELS.items():
            for combination in product(*values.values()):
                self._counters[name].labels(*combination)
        self._histograms = {
            name: Histogram(name, text, buckets=buckets, registry=self.registry)
            for buckets, texts in HISTOGRAMS.items()
            for name, text in texts.items()
        }
        self._gap = WeightedHistogram(GAP, "Seconds between two tokens of a sequence.", GAPS, self.registry)
        self.lag = self._histograms["lengthwise:event_loop_lag_seconds"]
        self.sent = self._histograms["lengthwise:token_write_seconds"]
        self.prediction = self._histograms["lengthwise:prediction_seconds"]
        self.late = self._histograms["lengthwise:late_prediction_seconds"]

    def expect(self, executors: Iterable[int]) -> None:
        """Start counters at 0."""
        for executor in executors:
            self._add("lengthwise:executor_busy_seconds", 0.0, executor=str(executor))

    def receive(self, report: Report) -> None:
        now = self.reported[report.executor] = self._now()
        match report:
            case StepReport():
                self._count(report)
                self._count_gaps(report, now)
            case ExecutorDied():
                self._add("lengthwise:executor_deaths")

    def on_first_token(self, request: Request, now: float) -> None:
        self._observe("vllm:time_to_first_token_seconds", now - request.times.came)

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """No reason: the client left."""
        self._latest_tokens.pop(request.row_id, None)
        self._add("lengthwise:client_service_tokens", service_had(request), client=self._label(request.client))
        if reason is None or reason is FinishReason.ERROR:
            self._add("lengthwise:request_failure", kind=request.failure or reason or "cancelled")
            return
        self._add("vllm:request_success", finished_reason=reason)
        self._observe("vllm:request_generation_tokens", request.generated)
        self._observe("vllm:request_prompt_tokens", request.input_length)
        self._observe("vllm:request_params_max_tokens", request.sampling.max_tokens)
        self._observe("lengthwise:request_runs", request.runs)
        self._time(request, now)
        if request.predicted_length is not None:
            self._observe("lengthwise:request_predicted_tokens", request.predicted_length)
            if can_be_judged(request, reason):
                self._judge(request.predicted_length, request)
        if request.expected is not None and request.expected.known:
            self._judge_end(request.expected, now)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """Times count for batches that ran as planned."""
        if assignment.intact and assignment.plan.estimate and assignment.began is not None:
            seconds = now - assignment.began
            self._observe("lengthwise:serving_time_seconds", seconds)
            self._observe("lengthwise:serving_time_error_seconds", abs(assignment.plan.estimate - seconds))

    def count_response(self, method: str, route: str, status: str, refusal: str | None) -> None:
        """`refusal`: why a retryable call was refused."""
        self._add("lengthwise:http_responses", method=method, route=route, status=status)
        if refusal is not None:
            self._add("vllm:admission_rejections", reason=refusal)

    def _count(self, report: StepReport) -> None:
        tally = report.tally
        self.tokens += tally
        for field, name, labels in TALLIED:
            if amount := getattr(tally, field):
                self._add(name, amount, **labels)
        if report.seconds:
            self._add("lengthwise:executor_busy_seconds", report.seconds, executor=str(report.executor))
            self._observe("lengthwise:step_seconds", report.seconds)
            self._observe("vllm:iteration_tokens_total", tally.prompt + tally.generated)
        if report.seconds and not tally.prompt and tally.generated:
            self._observe("lengthwise:batch_rows", tally.generated + tally.invalid)
        if report.extracted:
            self._add("vllm:num_preemptions", len(report.extracted))
        for back in report.handed_back:
            kept = len(back.row_ids) - len(back.dropped)
            self._add("lengthwise:handed_back_rows", kept, cause=back.cause, kv="kept")
            self._add("lengthwise:handed_back_rows", len(back.dropped), cause=back.cause, kv="dropped")
            if back.cause is not Cause.SLICE:
                self._add("vllm:num_preemptions", len(back.row_ids))

    def _count_gaps(self, report: StepReport, now: float) -> None:
        rows = {update.row_id: tokens for update in report.updates if (tokens := update.tokens)}
        latest = self._latest_tokens
        gaps = Tallies((now - latest[row_id]) / tokens for row_id, tokens in rows.items() if row_id in latest)
        for gap, times in gaps.items():
            self._gap.observe(gap, times)
        self._latest_tokens.update(dict.fromkeys(rows, now))
        if now - self._swept > FORGOTTEN:  # a row cancelled within a step is reported once more
            self._latest_tokens = {row_id: at for row_id, at in self._latest_tokens.items() if now - at < FORGOTTEN}
            self._swept = now

    def _time(self, request: Request, now: float) -> None:
        times = replace(request.times, end=now)
        for name, (start, end) in SPANS.items():
            begin, over = getattr(times, start), getattr(times, end)
            if begin is not None and over is not None:
                self._observe(name, over - begin)
        if times.first_token is not None and request.generated > 1:
            seconds = (now - times.first_token) / (request.generated - 1)
            self._observe("vllm:request_time_per_output_token_seconds", seconds)

    def _judge(self, predicted: float, request: Request) -> None:
        true, inside = request.generated, is_inside(request)
        self._observe("lengthwise:predicted_length_error_tokens", abs(predicted - true))
        self._add("lengthwise:overpredicted_tokens", max(0.0, predicted - true))
        self._add("lengthwise:underpredicted_tokens", max(0.0, true - predicted))
        if true:
            self._observe("lengthwise:predicted_length_relative_error", abs(predicted - true) / true)
        self._add("lengthwise:predicted_within_twice", within_twice(predicted, true))
        if inside is not None:
            self._add("lengthwise:predicted_intervals", inside=str(inside).lower())

    def _judge_end(self, expected: Expected, now: float) -> None:
        seconds = max(now - expected.at, LEAST_SECONDS)
        self._observe("lengthwise:eta_relative_error", abs(expected.median - seconds) / seconds)
        place = "below" if seconds < expected.low else "above" if seconds > expected.high else "inside"
        self._add("lengthwise:eta_answers", interval=place)

    def _label(self, client: str) -> str:
        """Clients beyond MOST_CLIENTS share a label."""
        if len(self._clients) < MOST_CLIENTS:
            self._clients.add(client)
        return (client or "all") if client in self._clients else "other"

    def _add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)


METRICS = web.AppKey("metrics", MetricsCollector)


async def metrics(request: web.Request) -> web.Response:
    """Send counters, gauges and histograms for Prometheus; raises HTTPNotFound where nothing is counted."""
    counted = request.app.get(METRICS)
    if counted is None:
        raise web.HTTPNotFound
    return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
