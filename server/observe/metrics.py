"""GET /metrics: what the server counts, in the Prometheus text format; vLLM's names where the meaning is the same.

It watches reports, requests, batches and responses go by, and changes nothing. What is only read at a scrape
is in gauges.py; docs/observability.md explains every name.
"""

from __future__ import annotations

import time
from collections import Counter as Tallies
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import Cause, ExecutorDied, FinishReason, Report, RowId, StepReport
from scheduler.length.evaluation import can_be_judged, is_inside, within_twice
from scheduler.plan import Assignment
from scheduler.request import Failure, Request
from scheduler.wait_estimate.completion import LEAST_SECONDS, Expected
from scheduler.waiting.fair import service_had
from server.observe.measures import WeightedHistogram

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
RUNS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

GOOD = (FinishReason.STOP, FinishReason.LENGTH)
FAILURES = (*Failure, FinishReason.ERROR, "cancelled")

MOST_CLIENTS = 64  # clients that have a label of their own
FORGOTTEN = 600.0  # seconds after which a row without a new token is taken to be gone

REASONS = (
    "deadline_unreachable",
    "executor_failed",
    "queue_full",
    "rate_limit_exceeded",
    "server_shutting_down",
    "too_many_large_bodies",
)
"""Codes of the errors that turn a call away which another time could have been served."""

SPANS = (
    ("vllm:request_queue_time_seconds", "arrival", "started"),
    ("vllm:e2e_request_latency_seconds", "arrival", "end"),
    ("vllm:request_inference_time_seconds", "started", "end"),
    ("vllm:request_prefill_time_seconds", "started", "first_token"),
    ("vllm:request_decode_time_seconds", "first_token", "end"),
)
"""Histograms of the time between two moments of a request: name, and the fields of its Times."""


HELP: Mapping[str, str] = MappingProxyType(
    {
        "vllm:request_success": "Requests that ended with a complete answer, or at their token limit.",
        "lengthwise:request_failure": "Requests that failed, or whose client left.",
        "vllm:admission_rejections": "Calls refused with 429 or 503, by the code of the error.",
        "lengthwise:http_responses": "HTTP responses.",
        "vllm:time_to_first_token_seconds": "Seconds from a request's arrival to its first token.",
        "vllm:inter_token_latency_seconds": "Seconds between two tokens of a sequence.",
        "vllm:request_time_per_output_token_seconds": "Mean seconds between two tokens of a request.",
        "vllm:request_prompt_tokens": "Prompt tokens of a request.",
        "vllm:request_generation_tokens": "Tokens of an answer, the end token included.",
        "vllm:request_params_max_tokens": "The token limit (max_tokens) of a request.",
        "lengthwise:client_service_tokens": "Service to each client: 1 for a prompt token, 2 for a generated one.",
        "lengthwise:request_runs": "Times that a request was given to an executor, by slice or pause.",
        "vllm:prompt_tokens": "Prompt tokens read.",
        "vllm:generation_tokens": "Tokens generated for answers.",
        "lengthwise:pad_tokens": "Padding: cells computed or read that held no token of their sequence.",
        "lengthwise:decode_reads": "Cells of keys and values read by decode steps: rows times columns.",
        "lengthwise:invalid_tokens": "Tokens generated for sequences that had ended but kept their slot.",
        "lengthwise:executor_busy_seconds": "Seconds during which an executor was computing.",
        "lengthwise:executor_deaths": "Executors that died.",
        "lengthwise:batch_rows": "Sequences in the batch at each decode step.",
        "lengthwise:step_seconds": "Seconds of an executor's step: a chunk of a prompt, or one decode step.",
        "vllm:iteration_tokens_total": "Tokens read and generated in one step of an executor.",
        "vllm:num_preemptions": "Running sequences that were paused or handed back for lack of memory or for priority.",
        "lengthwise:handed_back_rows": "Sequences returned to the queue before their end, by cause and fate of K/V.",
        "lengthwise:event_loop_lag_seconds": "Seconds by which the event loop woke up late, four times a second.",
        "lengthwise:request_predicted_tokens": "Predicted length of an answer.",
        "lengthwise:prediction_seconds": "Seconds that a request waits for its length prediction.",
        "lengthwise:late_prediction_seconds": "Seconds that a request had gone on without its length prediction.",
        "lengthwise:predicted_length_error_tokens": "Tokens between predicted and true length, of judged answers.",
        "lengthwise:overpredicted_tokens": "Tokens that were predicted and not generated, of judged answers.",
        "lengthwise:underpredicted_tokens": "Tokens that were generated and not predicted, of judged answers.",
        "lengthwise:predicted_length_relative_error": "Error of the predicted length, divided by the true length.",
        "lengthwise:predicted_within_twice": "Judged answers whose prediction was within a factor of 2.",
        "lengthwise:predicted_intervals": "Judged answers, by whether they were inside the 90 % interval.",
        "lengthwise:eta_relative_error": "Error of the latency estimated at arrival, divided by the true latency.",
        "lengthwise:eta_answers": "Answers that ended inside, below or above the interval estimated at arrival.",
        "lengthwise:serving_time_seconds": "Seconds taken by batches whose serving time was predicted.",
        "lengthwise:serving_time_error_seconds": "Seconds between predicted and true serving time of a batch.",
        "vllm:request_queue_time_seconds": "Seconds from a request's arrival until its prompt begins to be read.",
        "vllm:e2e_request_latency_seconds": "Seconds from a request's arrival to its last token.",
        "vllm:request_inference_time_seconds": "Seconds from the start of a request's prompt to its last token.",
        "vllm:request_prefill_time_seconds": "Seconds from the start of a request's prompt to its first token.",
        "vllm:request_decode_time_seconds": "Seconds from a request's first token to its last.",
    }
)
"""What each metric is. Judged answers are those that ended by themselves and were predicted to."""


class Registry(CollectorRegistry):
    """All metrics: ours with the model's name, and none with the moment when it was made, a fifth of all samples."""

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


class Metrics:
    """An observer of the scheduler's requests and batches, and a reader of the executors' reports. Event loop only."""

    def __init__(self, model: str, now: Callable[[], float] = time.monotonic) -> None:
        self.registry = Registry(model)
        self._now = now
        self._latest_tokens: dict[RowId, float] = {}  # when each row's latest token came
        self._swept = now()
        self._reported: dict[int, float] = {}
        self._count_requests()
        self._count_steps()
        self._measure_predictions()

    def _count_requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self._success = counter("vllm:request_success", finished_reason=GOOD)
        self._failed = counter("lengthwise:request_failure", kind=FAILURES)
        self._refused = counter("vllm:admission_rejections", reason=REASONS)
        self._responses = counter("lengthwise:http_responses", method=(), route=(), status=())
        self._first = histogram("vllm:time_to_first_token_seconds", SECONDS)
        self._gap = WeightedHistogram(
            "vllm:inter_token_latency_seconds", HELP["vllm:inter_token_latency_seconds"], GAPS, self.registry
        )
        self._time_per_token = histogram("vllm:request_time_per_output_token_seconds", GAPS)
        self._spans = [(histogram(name, SECONDS), start, end) for name, start, end in SPANS]
        self._input = histogram("vllm:request_prompt_tokens", TOKENS)
        self._length = histogram("vllm:request_generation_tokens", TOKENS)
        self._most = histogram("vllm:request_params_max_tokens", TOKENS)
        self._service = counter("lengthwise:client_service_tokens", client=("all",))
        self._clients: set[str] = set()
        self._runs = histogram("lengthwise:request_runs", RUNS)

    def _count_steps(self) -> None:
        counter, histogram, phases = self._counter, self._histogram, ("prefill", "decode")
        self._prompt = counter("vllm:prompt_tokens")
        self._generated = counter("vllm:generation_tokens")
        self._pad = counter("lengthwise:pad_tokens", phase=phases)
        self._reads = counter("lengthwise:decode_reads")
        self._invalid = counter("lengthwise:invalid_tokens")
        self._busy = counter("lengthwise:executor_busy_seconds", executor=())
        self._deaths = counter("lengthwise:executor_deaths")
        self._rows = histogram("lengthwise:batch_rows", ROWS)
        self._step = histogram("lengthwise:step_seconds", SECONDS)
        self._turn = histogram("vllm:iteration_tokens_total", STEP_TOKENS)
        self._preempted = counter("vllm:num_preemptions")
        self._returned = counter("lengthwise:handed_back_rows", cause=Cause, kv=("kept", "dropped"))
        self.lag = histogram("lengthwise:event_loop_lag_seconds", SECONDS)

    def _measure_predictions(self) -> None:
        counter, histogram = self._counter, self._histogram
        self._predicted = histogram("lengthwise:request_predicted_tokens", TOKENS)
        self.prediction = histogram("lengthwise:prediction_seconds", SECONDS)
        self.late = histogram("lengthwise:late_prediction_seconds", SECONDS)
        self._error = histogram("lengthwise:predicted_length_error_tokens", TOKENS)
        # The mean bias is their difference: a histogram of values that may be negative has no sum.
        self._over = counter("lengthwise:overpredicted_tokens")
        self._under = counter("lengthwise:underpredicted_tokens")
        self._relative = histogram("lengthwise:predicted_length_relative_error", SHARES)
        self._twice = counter("lengthwise:predicted_within_twice")
        self._intervals = counter("lengthwise:predicted_intervals", inside=("true", "false"))
        self._eta_error = histogram("lengthwise:eta_relative_error", SHARES)
        self._eta = counter("lengthwise:eta_answers", interval=("inside", "below", "above"))
        self._serving = histogram("lengthwise:serving_time_seconds", SECONDS)
        self._misjudged = histogram("lengthwise:serving_time_error_seconds", SECONDS)

    def expect(self, executors: Iterable[int]) -> None:
        """Begin the counters of executors, which have computed nothing yet."""
        for executor in executors:
            self._busy.labels(executor=str(executor))

    def receive(self, report: Report) -> None:
        """An executor has reported."""
        now = self._reported[report.executor] = self._now()
        match report:
            case StepReport():
                self._count(report)
                self._count_gaps(report, now)
            case ExecutorDied():
                self._deaths.inc()

    def last_report(self, executor: int) -> float | None:
        """Time of an executor's latest report."""
        return self._reported.get(executor)

    def on_first_token(self, request: Request, now: float) -> None:
        """An answer has begun."""
        self._first.observe(now - request.times.arrival)

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended; without a reason its client had left."""
        self._latest_tokens.pop(request.row_id, None)
        self._service.labels(client=self._label(request.client)).inc(service_had(request))
        if reason is None or reason is FinishReason.ERROR:
            self._failed.labels(kind=request.failure or reason or "cancelled").inc()
            return
        self._success.labels(finished_reason=reason).inc()
        self._length.observe(request.generated)
        self._input.observe(request.input_length)
        self._most.observe(request.sampling.max_tokens)
        self._runs.observe(request.runs)
        self._time(request, now)
        if request.predicted_length is not None:
            self._predicted.observe(request.predicted_length)
            if can_be_judged(request, reason):
                self._judge(request.predicted_length, request)
        if request.expected is not None and request.expected.known:
            self._judge_end(request.expected, now)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """A batch is over; its time counts where it ran as planned."""
        if assignment.intact and assignment.plan.estimate and assignment.began is not None:
            seconds = now - assignment.began
            self._serving.observe(seconds)
            self._misjudged.observe(abs(assignment.plan.estimate - seconds))

    def count_refusal(self, reason: str) -> None:
        """A call was turned away that another time could have been served."""
        self._refused.labels(reason=reason).inc()

    def count_response(self, method: str, route: str, status: str) -> None:
        """A response, or its attempt, is over."""
        self._responses.labels(method=method, route=route, status=status).inc()

    def _count(self, report: StepReport) -> None:
        tally = report.tally
        self._prompt.inc(tally.prompt)
        self._generated.inc(tally.generated)
        self._pad.labels(phase="prefill").inc(tally.pad)
        self._pad.labels(phase="decode").inc(tally.pad_reads)
        self._reads.inc(tally.reads)
        self._invalid.inc(tally.invalid)
        self._busy.labels(executor=str(report.executor)).inc(report.seconds)
        if report.seconds:
            self._step.observe(report.seconds)
            self._turn.observe(tally.prompt + tally.generated)
        if report.seconds and not tally.prompt and tally.generated:
            self._rows.observe(tally.generated + tally.invalid)
        self._preempted.inc(len(report.extracted))
        for back in report.handed_back:
            kept = len(back.row_ids) - len(back.dropped)
            self._returned.labels(cause=back.cause, kv="kept").inc(kept)
            self._returned.labels(cause=back.cause, kv="dropped").inc(len(back.dropped))
            if back.cause is not Cause.SLICE:
                self._preempted.inc(len(back.row_ids))

    def _count_gaps(self, report: StepReport, now: float) -> None:
        rows = {update.row_id: len(update.token_ids) for update in report.updates if update.token_ids}
        latest = self._latest_tokens
        gaps = Tallies((now - latest[row_id]) / tokens for row_id, tokens in rows.items() if row_id in latest)
        for gap, times in gaps.items():
            self._gap.observe(gap, times)
        self._latest_tokens.update(dict.fromkeys(rows, now))
        if now - self._swept > FORGOTTEN:  # a row that was cancelled in the middle of a step is reported once more
            self._latest_tokens = {row_id: at for row_id, at in self._latest_tokens.items() if now - at < FORGOTTEN}
            self._swept = now

    def _time(self, request: Request, now: float) -> None:
        times = replace(request.times, end=now)
        for histogram, start, end in self._spans:
            begin, over = getattr(times, start), getattr(times, end)
            if begin is not None and over is not None:
                histogram.observe(over - begin)
        if times.first_token is not None and request.generated > 1:
            self._time_per_token.observe((now - times.first_token) / (request.generated - 1))

    def _judge(self, predicted: float, request: Request) -> None:
        true, inside = request.generated, is_inside(request)
        self._error.observe(abs(predicted - true))
        self._over.inc(max(0.0, predicted - true))
        self._under.inc(max(0.0, true - predicted))
        if true:
            self._relative.observe(abs(predicted - true) / true)
        self._twice.inc(within_twice(predicted, true))
        if inside is not None:
            self._intervals.labels(inside=str(inside).lower()).inc()

    def _judge_end(self, expected: Expected, now: float) -> None:
        """Compare when an answer was complete with when it was expected to be as its request came."""
        seconds = max(now - expected.at, LEAST_SECONDS)
        self._eta_error.observe(abs(expected.median - seconds) / seconds)
        place = "below" if seconds < expected.low else "above" if seconds > expected.high else "inside"
        self._eta.labels(interval=place).inc()

    def _label(self, client: str) -> str:
        """The name of one of the first MOST_CLIENTS; the others share a label, since labels are never forgotten."""
        if len(self._clients) < MOST_CLIENTS:
            self._clients.add(client)
        return (client or "all") if client in self._clients else "other"

    def _counter(self, name: str, **values: Iterable[str]) -> Counter:
        """A counter that is 0 from the start where the values of all its labels are known."""
        counter = Counter(name, HELP[name], [*values], registry=self.registry)
        if values:
            for combination in product(*values.values()):
                counter.labels(*combination)
        return counter

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, HELP[name], buckets=buckets, registry=self.registry)


METRICS = web.AppKey("metrics", Metrics)


async def metrics(request: web.Request) -> web.Response:
    """Send counters, gauges and histograms for Prometheus; raises HTTPNotFound where nothing is counted."""
    counted = request.app.get(METRICS)
    if counted is None:
        raise web.HTTPNotFound
    return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
