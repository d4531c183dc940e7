"""GET /metrics in Prometheus format; gauges.py reads the rest."""

import time
from collections import Counter as Tallies
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from aiohttp import web
from prometheus_client import Counter
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import Cause, ExecutorDied, FinishReason, Report, RowId, StepReport, StepStats
from scheduler.length.likely import can_be_judged, is_inside, within_twice
from scheduler.plan import Assignment
from scheduler.request import Request
from scheduler.wait_estimate.completion import LEAST_SECONDS, Expected
from scheduler.waiting.fair import service_had
from server.observe import families

MOST_CLIENTS = 64  # with own labels
FORGOTTEN = 600.0  # seconds without a token after which a row is gone


class MetricsCollector:
    """Observes requests, batches and reports. Event loop only."""

    def __init__(self, model: str, now: Callable[[], float] = time.monotonic) -> None:
        self.registry = families.Registry(model)
        self.tokens = StepStats()
        self._now = now
        self._latest_tokens: dict[RowId, float] = {}
        self._swept = now()
        self.reported: dict[int, float] = {}  # when each executor reported last
        self._clients: set[str] = set()
        self._counters = {
            name: Counter(name, text, [*families.LABELS.get(name, ())], registry=self.registry)
            for name, text in families.COUNTERS.items()
        }
        for name, values in families.LABELS.items():
            for combination in product(*values.values()):
                self._counters[name].labels(*combination)
        self._labelled: dict[tuple[str, ...], Counter] = {}
        self._histograms = {
            name: families.WeightedHistogram(name, text, families.BOUNDS[bounds], self.registry)
            for bounds, texts in families.HISTOGRAMS.items()
            for name, text in texts.items()
        }
        self._gap, self.sent = (
            families.WeightedHistogram(name, text, families.BOUNDS["gaps"], self.registry)
            for name, text in families.PER_TOKEN.items()
        )
        self.lag = self._histograms["lengthwise:event_loop_lag_seconds"]
        self.prediction = self._histograms["lengthwise:prediction_seconds"]
        self.late = self._histograms["lengthwise:late_prediction_seconds"]

    def expect(self, executors: Iterable[int]) -> None:
        for executor in executors:
            self._add("lengthwise:executor_busy_seconds", 0.0, executor=str(executor))

    def receive(self, report: Report) -> None:
        now = self.reported[report.executor] = self._now()
        if isinstance(report, StepReport):
            self._count(report)
            self._count_gaps(report, now)
        elif isinstance(report, ExecutorDied):
            self._add("lengthwise:executor_deaths")

    def on_first_token(self, request: Request, now: float) -> None:
        self._histograms["vllm:time_to_first_token_seconds"].observe(now - request.times.came)

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """No reason: the client left."""
        self._latest_tokens.pop(request.row_id, None)
        self._add("lengthwise:client_service_tokens", service_had(request), client=self._label(request.client))
        failed = reason is FinishReason.ERROR
        if reason is not None and (kept := request.keeps_promise(now)) is not None:
            asked = str(request.promised is not None).lower()
            self._add("lengthwise:promises", kept=str(kept and not failed).lower(), asked=asked)
        if reason is None or failed:
            self._add("lengthwise:request_failure", kind=request.failure or reason or "cancelled")
            return
        self._add("vllm:request_success", finished_reason=reason)
        self._histograms["vllm:request_generation_tokens"].observe(request.generated)
        self._histograms["vllm:request_prompt_tokens"].observe(request.input_length)
        self._histograms["vllm:request_params_max_tokens"].observe(request.sampling.max_tokens)
        self._histograms["lengthwise:request_runs"].observe(request.runs)
        self._time(request, now)
        if request.predicted_length is not None:
            self._histograms["lengthwise:request_predicted_tokens"].observe(request.predicted_length)
            if can_be_judged(request, reason):
                self._judge(request.predicted_length, request)
        if request.expected is not None and request.expected.known and request.promised is None:
            self._judge_end(request.expected, now)  # a client could ask for next month

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """Times count for batches that ran as planned."""
        if assignment.intact and assignment.plan.estimate and assignment.began is not None:
            seconds = now - assignment.began
            self._histograms["lengthwise:serving_time_seconds"].observe(seconds)
            self._histograms["lengthwise:serving_time_error_seconds"].observe(abs(assignment.plan.estimate - seconds))

    def count_response(self, method: str, route: str, status: str, refusal: str | None) -> None:
        """`refusal`: why a retryable call was refused."""
        self._add("lengthwise:http_responses", method=method, route=route, status=status)
        if refusal is not None:
            self._add("vllm:admission_rejections", reason=refusal)

    def _count(self, report: StepReport) -> None:
        tally = report.tally
        self.tokens += tally
        for field, name, labels in families.TALLIED:
            if amount := getattr(tally, field):
                self._add(name, amount, **labels)
        if report.seconds:
            self._add("lengthwise:executor_busy_seconds", report.seconds, executor=str(report.executor))
            self._histograms["lengthwise:step_seconds"].observe(report.seconds)
            self._histograms["vllm:iteration_tokens_total"].observe(tally.prompt + tally.generated)
        if report.seconds and not tally.prompt and tally.generated:
            self._histograms["lengthwise:batch_rows"].observe(tally.generated + tally.invalid)
        if report.swapped_out:
            self._add("vllm:num_preemptions", len(report.swapped_out))
        for back in report.handed_back:
            kept = len(back.row_ids) - len(back.dropped)
            self._add("lengthwise:handed_back_rows", kept, cause=back.cause, kv="kept")
            self._add("lengthwise:handed_back_rows", len(back.dropped), cause=back.cause, kv="dropped")
            if back.cause is not Cause.SLICE:
                self._add("vllm:num_preemptions", len(back.row_ids))

    def _count_gaps(self, report: StepReport, now: float) -> None:
        rows = {update.row_id: tokens for update in report.updates if (tokens := update.tokens)}
        gaps = Tallies(zip(map(self._latest_tokens.get, rows), rows.values(), strict=True))  # few differ
        for (before, tokens), times in gaps.items():
            if before is not None:
                self._gap.observe((now - before) / tokens, times)
        self._latest_tokens.update(dict.fromkeys(rows, now))
        if now - self._swept > FORGOTTEN:  # a row cancelled within a step is reported once more
            self._latest_tokens = {row_id: at for row_id, at in self._latest_tokens.items() if now - at < FORGOTTEN}
            self._swept = now

    def _time(self, request: Request, now: float) -> None:
        times = replace(request.times, end=now)
        for name, (start, end) in families.SPANS.items():
            begin, over = getattr(times, start), getattr(times, end)
            if begin is not None and over is not None:
                self._histograms[name].observe(over - begin)
        if times.first_token is not None and request.generated > 1:
            seconds = (now - times.first_token) / (request.generated - 1)
            self._histograms["vllm:request_time_per_output_token_seconds"].observe(seconds)

    def _judge(self, predicted: float, request: Request) -> None:
        true, inside = request.generated, is_inside(request)
        self._histograms["lengthwise:predicted_length_error_tokens"].observe(abs(predicted - true))
        self._add("lengthwise:overpredicted_tokens", max(0.0, predicted - true))
        self._add("lengthwise:underpredicted_tokens", max(0.0, true - predicted))
        if true:
            self._histograms["lengthwise:predicted_length_relative_error"].observe(abs(predicted - true) / true)
        self._add("lengthwise:predicted_within_twice", within_twice(predicted, true))
        if inside is not None:
            self._add("lengthwise:predicted_intervals", inside=str(inside).lower())

    def _judge_end(self, expected: Expected, now: float) -> None:
        seconds = max(now - expected.at, LEAST_SECONDS)
        self._histograms["lengthwise:eta_relative_error"].observe(abs(expected.median - seconds) / seconds)
        self._histograms["lengthwise:promised_latency_ratio"].observe(expected.high / seconds)
        place = "below" if seconds < expected.low else "above" if seconds > expected.high else "inside"
        self._add("lengthwise:eta_answers", interval=place)

    def _label(self, client: str) -> str:
        if len(self._clients) < MOST_CLIENTS:
            self._clients.add(client)
        return (client or "all") if client in self._clients else "other"

    def _add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        key = (name, *labels.values())
        if key not in self._labelled:
            self._labelled[key] = self._counters[name].labels(**labels) if labels else self._counters[name]
        self._labelled[key].inc(amount)


METRICS = web.AppKey("metrics", MetricsCollector)


async def metrics(request: web.Request) -> web.Response:
    """Send counters, gauges and histograms for Prometheus; raises HTTPNotFound where nothing is counted."""
    counted = request.app.get(METRICS)
    if counted is None:
        raise web.HTTPNotFound
    return web.Response(body=generate_latest(counted.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
