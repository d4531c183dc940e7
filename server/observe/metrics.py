"""GET /metrics: what the server counts, in the Prometheus text format; vLLM's names where the meaning is the same.

It watches reports, requests, batches and responses go by, and changes nothing. What is only read at a scrape
is in gauges.py; docs/observability.md explains every name.
"""

from __future__ import annotations

import time
from collections import Counter as Tallies
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import Cause, ExecutorDied, FinishReason, Report, RowId, StepReport
from scheduler.plan import Assignment
from scheduler.request import Failure, Request
from server.observe.histogram import WeightedHistogram

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
RUNS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

GOOD = (FinishReason.STOP, FinishReason.LENGTH)
FAILURES = (*Failure, FinishReason.ERROR, "cancelled")

FORGOTTEN = 600.0
"""Seconds after which a row without a new token is taken to be gone."""


REASONS = (
    "deadline_unreachable",
    "executor_failed",
    "queue_full",
    "rate_limit_exceeded",
    "server_shutting_down",
    "too_many_large_bodies",
)
"""Codes of the errors that turn a call away which another time could have been served."""


class Registry(CollectorRegistry):
    """All metrics, without the moment when each counter and histogram was made: a fifth of all samples, never used."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """An observer of the scheduler's requests and batches, and a reader of the executors' reports. Event loop only."""

    def __init__(self, model: str, now: Callable[[], float] = time.monotonic) -> None:
        self.registry = Registry()
        self.labels = {"model_name": model}
        self._now = now
        self._latest_tokens: dict[RowId, float] = {}  # when each row's latest token came
        self._swept = now()
        self._reported: dict[int, float] = {}
        self._count_tokens()
        self._count_requests()
        self._count_steps()
        self._measure_predictions()

    def _count_tokens(self) -> None:
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens that were read.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens that went into answers.")
        self._pad = self._counter(
            "lengthwise:pad_tokens", "Cells that held no token of their row.", phase=("prefill", "decode")
        )
        self._reads = self._counter("lengthwise:decode_reads", "Cells of K and V that decode steps read.")
        self._invalid = self._counter("lengthwise:invalid_tokens", "Tokens made for rows that had ended.")

    def _count_requests(self) -> None:
        self._success = self._counter("vllm:request_success", "Requests that ended well.", finished_reason=GOOD)
        self._failed = self._counter(
            "lengthwise:request_failure", "Requests that failed or were cancelled.", kind=FAILURES
        )
        self._refused = self._counter(
            "vllm:admission_rejections", "Calls refused for load or for going.", reason=REASONS
        )
        self._responses = self._counter("lengthwise:http_responses", "Responses.", method=(), route=(), status=())
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", SECONDS)
        self._gap = WeightedHistogram(
            "vllm:inter_token_latency_seconds", "Between tokens of a row.", GAPS, self.labels, self.registry
        )
        self._time_per_token = self._histogram(
            "vllm:request_time_per_output_token_seconds", "A request's mean gap between tokens.", GAPS
        )
        self._latency = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", SECONDS)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to start.", SECONDS)
        self._inference = self._histogram("vllm:request_inference_time_seconds", "Start to last token.", SECONDS)
        self._prefill = self._histogram("vllm:request_prefill_time_seconds", "Start to first token.", SECONDS)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "First to last token.", SECONDS)
        self._input = self._histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self._length = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", TOKENS)
        self._most = self._histogram("vllm:request_params_max_tokens", "Most tokens of an answer, as asked.", TOKENS)
        self._runs = self._histogram("lengthwise:request_runs", "Times a request was given to an executor.", RUNS)

    def _count_steps(self) -> None:
        self._busy = self._counter(
            "lengthwise:executor_busy_seconds", "Seconds that an executor computed.", executor=()
        )
        self._deaths = self._counter("lengthwise:executor_deaths", "Executors that are gone.")
        self._rows = self._histogram("lengthwise:batch_rows", "Rows of the batch at each decode step.", ROWS)
        self._step = self._histogram("lengthwise:step_seconds", "Duration of an executor's turns.", SECONDS)
        self._turn = self._histogram("vllm:iteration_tokens_total", "Tokens read and made in a turn.", STEP_TOKENS)
        self._preempted = self._counter("vllm:num_preemptions", "Running rows that had to make way.")
        self._returned = self._counter(
            "lengthwise:handed_back_rows", "Rows let go before their end.", cause=Cause, kv=("kept", "dropped")
        )
        self.lag = self._histogram("lengthwise:event_loop_lag_seconds", "How late the event loop woke up.", SECONDS)

    def _measure_predictions(self) -> None:
        self._predicted = self._histogram("lengthwise:request_predicted_tokens", "Predicted length.", TOKENS)
        waited = self._histogram("lengthwise:prediction_seconds", "What a request waits for its prediction.", SECONDS)
        self.prediction = waited.labels(**self.labels)
        late = self._histogram(
            "lengthwise:late_prediction_seconds", "What requests that went on without theirs went without it.", SECONDS
        )
        self.late = late.labels(**self.labels)
        self._error = self._histogram(
            "lengthwise:predicted_length_error_tokens", "Distance of the predicted from the true length.", TOKENS
        )
        # The mean bias is their difference: a histogram of values that may be negative has no sum.
        self._over = self._counter("lengthwise:overpredicted_tokens", "Tokens that were foreseen and did not come.")
        self._under = self._counter("lengthwise:underpredicted_tokens", "Tokens that came and were not foreseen.")
        self._relative = self._histogram(
            "lengthwise:predicted_length_relative_error", "That distance, as a share of the true length.", SHARES
        )
        self._serving = self._histogram("lengthwise:serving_time_seconds", "What planned batches took.", SECONDS)
        self._misjudged = self._histogram(
            "lengthwise:serving_time_error_seconds", "Distance of the predicted from the true serving time.", SECONDS
        )

    def expect(self, executors: Iterable[int]) -> None:
        """These executors have computed nothing yet."""
        for executor in executors:
            self._busy.labels(**self.labels, executor=str(executor))

    def receive(self, report: Report) -> None:
        """An executor has reported."""
        now = self._reported[report.executor] = self._now()
        match report:
            case StepReport():
                self._count(report)
                self._count_gaps(report, now)
            case ExecutorDied():
                self._deaths.labels(**self.labels).inc()

    def last_report(self, executor: int) -> float | None:
        """Time of an executor's latest report."""
        return self._reported.get(executor)

    def first_token(self, request: Request, now: float) -> None:
        """An answer has begun."""
        self._observe(self._first, now - request.times.arrival)

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended; without a reason its client had left."""
        self._latest_tokens.pop(request.row_id, None)
        if reason is None or reason is FinishReason.ERROR:
            self._failed.labels(**self.labels, kind=request.failure or reason or "cancelled").inc()
            return
        self._success.labels(**self.labels, finished_reason=reason).inc()
        self._observe(self._length, request.generated)
        self._observe(self._input, request.input_length)
        self._observe(self._most, request.sampling.max_tokens)
        self._observe(self._runs, request.runs)
        self._time(request, now)
        if request.predicted_length is not None:
            self._judge(request.predicted_length, request.generated)

    def finished(self, assignment: Assignment, now: float) -> None:
        """A batch is over; its time counts where it ran as planned."""
        if assignment.intact and assignment.plan.estimate and assignment.began is not None:
            seconds = now - assignment.began
            self._observe(self._serving, seconds)
            self._observe(self._misjudged, abs(assignment.plan.estimate - seconds))

    def count_refusal(self, reason: str) -> None:
        """A call was turned away that another time could have been served."""
        self._refused.labels(**self.labels, reason=reason).inc()

    def count_response(self, method: str, route: str, status: str) -> None:
        """A response, or its attempt, is over."""
        self._responses.labels(**self.labels, method=method, route=route, status=status).inc()

    def _count(self, report: StepReport) -> None:
        tally = report.tally
        self._prompt.labels(**self.labels).inc(tally.prompt)
        self._generated.labels(**self.labels).inc(tally.generated)
        self._pad.labels(**self.labels, phase="prefill").inc(tally.pad)
        self._pad.labels(**self.labels, phase="decode").inc(tally.pad_reads)
        self._reads.labels(**self.labels).inc(tally.reads)
        self._invalid.labels(**self.labels).inc(tally.invalid)
        self._busy.labels(**self.labels, executor=str(report.executor)).inc(report.seconds)
        self._observe(self._step, report.seconds)
        self._observe(self._turn, tally.prompt + tally.generated)
        if not tally.prompt and tally.generated:
            self._observe(self._rows, tally.generated + tally.invalid)
        self._preempted.labels(**self.labels).inc(len(report.extracted))
        for back in report.handed_back:
            kept = len(back.row_ids) - len(back.dropped)
            self._returned.labels(**self.labels, cause=back.cause, kv="kept").inc(kept)
            self._returned.labels(**self.labels, cause=back.cause, kv="dropped").inc(len(back.dropped))
            if back.cause is not Cause.SLICE:
                self._preempted.labels(**self.labels).inc(len(back.row_ids))

    def _count_gaps(self, report: StepReport, now: float) -> None:
        rows = [update.row_id for update in report.updates if update.token_ids]
        gaps = Tallies(now - self._latest_tokens[row_id] for row_id in rows if row_id in self._latest_tokens)
        for gap, times in gaps.items():
            self._gap.observe(gap, times)
        self._latest_tokens.update(dict.fromkeys(rows, now))
        if now - self._swept > FORGOTTEN:  # a row that was cancelled in the middle of a step is reported once more
            self._latest_tokens = {row_id: at for row_id, at in self._latest_tokens.items() if now - at < FORGOTTEN}
            self._swept = now

    def _time(self, request: Request, now: float) -> None:
        times = request.times
        for histogram, start, end in (
            (self._queue, times.arrival, times.started),
            (self._latency, times.arrival, now),
            (self._inference, times.started, now),
            (self._prefill, times.started, times.first_token),
            (self._decode, times.first_token, now),
        ):
            if start is not None and end is not None:
                self._observe(histogram, end - start)
        if times.first_token is not None and request.generated > 1:
            self._observe(self._time_per_token, (now - times.first_token) / (request.generated - 1))

    def _judge(self, predicted: float, true: int) -> None:
        self._observe(self._predicted, predicted)
        self._observe(self._error, abs(predicted - true))
        self._over.labels(**self.labels).inc(max(0.0, predicted - true))
        self._under.labels(**self.labels).inc(max(0.0, true - predicted))
        if true:
            self._observe(self._relative, abs(predicted - true) / true)

    def _observe(self, histogram: Histogram, value: float) -> None:
        histogram.labels(**self.labels).observe(value)

    def _counter(self, name: str, text: str, **values: Iterable[str]) -> Counter:
        """A counter with labels of its own; it is 0 from the start where the values of all of them are known."""
        counter = Counter(name, text, [*self.labels, *values], registry=self.registry)
        for combination in product(*values.values()):
            counter.labels(*self.labels.values(), *combination)
        return counter

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, list(self.labels), buckets=buckets, registry=self.registry)
        histogram.labels(**self.labels)  # so that it is there from the start
        return histogram


METRICS = web.AppKey("metrics", Metrics)


async def metrics(request: web.Request) -> web.Response:
    """Answer with everything counted so far; 404 where nothing is counted."""
    counted = request.app.get(METRICS)
    if counted is None:
        raise web.HTTPNotFound
    return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
