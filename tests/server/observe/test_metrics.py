"""Metrics of requests whose numbers are known, and that a scraper finds them on a live server."""

import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import BatchShape, Cause, ExecutorDied, FinishReason, HandedBack, RowUpdate, StepReport, StepStats
from engine.sampling.params import SamplingParams
from scheduler.length.prediction import LengthDistribution
from scheduler.plan import Assignment, Plan
from scheduler.request import Request
from scheduler.wait_estimate.completion import Expected
from scheduler.waiting.fair import service_had
from server.observe.families import LABELS
from server.observe.metrics import FORGOTTEN, MOST_CLIENTS, MetricsCollector
from tests.scheduler.fakes import VirtualClock, request, token
from tests.server.counted import check, counted, read
from tests.server.live import chat_body, live_server


@pytest.fixture
def metrics() -> MetricsCollector:
    return MetricsCollector("m")


def report(tally: StepStats = StepStats(), seconds: float = 0.5, executor: int = 0, *updates: RowUpdate) -> StepReport:  # noqa: B008
    return StepReport(executor, 1, updates, BatchShape(), seconds, tally=tally)


def ended(generated: int, predicted: float | None = None) -> Request:
    one = request(arrival=10.0, max_tokens=16)
    one.generated, one.predicted_length = generated, predicted
    one.times.started, one.times.first_token = 11.0, 12.0
    return one


def test_tokens_are_counted_by_what_they_were_good_for(metrics: MetricsCollector) -> None:
    metrics.receive(report(StepStats(prompt=10, pad=3, generated=2)))
    metrics.receive(report(StepStats(generated=3, invalid=1, reads=40, pad_reads=9, invalid_reads=10), executor=1))
    metrics.receive(report(seconds=0.0))  # its last rows were cancelled
    metrics.receive(ExecutorDied(1, "fire"))
    check(metrics, {"vllm:prompt_tokens_total": 10, "vllm:generation_tokens_total": 5, "invalid_tokens_total": 1})
    check(metrics, {"decode_reads_total": 40, "batch_rows_sum": 4, "batch_rows_count": 1})
    check(metrics, {"vllm:iteration_tokens_total_sum": 15, "step_seconds_count": 2, "executor_deaths_total": 1})
    check(metrics, {"pad_tokens_total": 3}, phase="prefill")
    check(metrics, {"pad_tokens_total": 9}, phase="decode")  # padding that decode steps read counts too
    check(metrics, {"executor_busy_seconds_total": 0.5}, executor="1")


def test_requests_are_timed_from_their_arrival(metrics: MetricsCollector) -> None:
    metrics.on_end(ended(7, predicted=10.0), FinishReason.STOP, 15.0)
    metrics.on_end(ended(7), FinishReason.LENGTH, 15.0)
    metrics.on_end(ended(3), FinishReason.ERROR, 15.0)
    metrics.on_end(ended(3), None, 15.0)
    check(metrics, {"vllm:request_success_total": 1}, finished_reason="stop")
    parts = {"queue": 2.0, "inference": 8.0, "prefill": 2.0, "decode": 6.0}
    check(metrics, {f"vllm:request_{name}_time_seconds_sum": seconds for name, seconds in parts.items()})
    check(metrics, {"vllm:e2e_request_latency_seconds_sum": 10, "vllm:request_time_per_output_token_seconds_sum": 1})
    for kind in ("error", "cancelled"):
        check(metrics, {"request_failure_total": 1}, kind=kind)


async def test_the_first_token_is_timed_when_it_comes_and_not_when_the_answer_ends() -> None:
    watched = await counted()
    one = watched.dispatcher.submit(range(4), SamplingParams(max_tokens=8), arrival=0.0)
    watched.dispatcher.dispatch()
    for watched.clock.time in (3.0, 4.0):
        watched.dispatcher.receive(watched.ports[0].report(token(one.row_id, 5)))
    name = "vllm:time_to_first_token_seconds"
    assert (watched.read(f"{name}_count"), watched.read(f"{name}_sum")) == (1, 3.0)


def test_predictions_are_judged_by_what_came(metrics: MetricsCollector) -> None:
    for predicted, generated in ((10.0, 8), (4.0, 10), (None, 9)):
        metrics.on_end(ended(generated, predicted), FinishReason.STOP, 15.0)
    error = "predicted_length_error_tokens"
    check(metrics, {"request_predicted_tokens_sum": 14, f"{error}_sum": 8, f"{error}_count": 2})
    check(metrics, {"overpredicted_tokens_total": 2, "underpredicted_tokens_total": 6})
    check(metrics, {"predicted_length_relative_error_sum": 0.25 + 0.6, "predicted_within_twice_total": 1})


def test_a_prediction_that_repeats_max_tokens_or_whose_answer_was_cut_is_not_judged(metrics: MetricsCollector) -> None:
    """Of 757 answers 519 were predicted to have their max_tokens, had them, and made the median error 4 tokens."""
    most = ended(1).sampling.max_tokens
    metrics.on_end(ended(most, predicted=float(most)), FinishReason.LENGTH, 15.0)
    metrics.on_end(ended(3, predicted=float(most)), FinishReason.STOP, 15.0)
    check(metrics, {"request_predicted_tokens_count": 2, "predicted_length_error_tokens_count": 0})
    for one in (ended(3, predicted=4.0), ended(9, predicted=4.0)):
        one.distribution = LengthDistribution.of(np.array([3, 4, 5], np.float32), np.ones(3, np.float32))
        metrics.on_end(one, FinishReason.STOP, 15.0)
    check(metrics, {"predicted_length_error_tokens_count": 2, "predicted_within_twice_total": 1})
    for inside in ("true", "false"):
        check(metrics, {"predicted_intervals_total": 1}, inside=inside)


def test_expected_ends_are_judged_by_when_they_came(metrics: MetricsCollector) -> None:
    for at in (10.0, 13.0, 14.0):  # they end at 15, after 5, 2 and 1 s
        one = ended(8)
        one.expected = Expected(at, 0, 0.0, point=2.0, spread=1.0, low=1.5, median=2.0, high=4.0)
        metrics.on_end(one, FinishReason.STOP, 15.0)
    for place in ("below", "inside", "above"):
        check(metrics, {"eta_answers_total": 1}, interval=place)
    ratios = {"promised_latency_ratio_sum": 4 / 5 + 4 / 2 + 4 / 1}
    check(metrics, ratios | {"eta_relative_error_sum": 3 / 5 + 0.0 + 1 / 1})
    assert one.expected is not None
    one.promised, one.expected = 14.9, replace(one.expected, high=0.9)
    metrics.on_end(one, FinishReason.STOP, 15.0)
    one.promised, one.expected = 20.0, replace(one.expected, high=6.0)
    metrics.on_end(one, FinishReason.ERROR, 15.0)
    metrics.on_end(one, None, 15.0)
    check(metrics, ratios)  # what clients choose tells nothing of estimates
    # What failed is broken, what was left is not.
    for kept, asked, count in (("true", "false", 2), ("false", "false", 1), ("false", "true", 2), ("true", "true", 0)):
        check(metrics, {"promises_total": count}, kept=kept, asked=asked)


def test_service_is_counted_by_client_and_labels_are_bounded(metrics: MetricsCollector) -> None:
    for number in range(MOST_CLIENTS + 3):
        one = ended(8)
        one.client = f"client {number}" if number else ""
        metrics.on_end(one, FinishReason.STOP, 15.0)
    had = service_had(ended(8))
    for client, tokens in (("all", had), ("client 1", had), ("other", 3 * had)):
        check(metrics, {"client_service_tokens_total": tokens}, client=client)
    assert read(metrics, "lengthwise:client_service_tokens_total", client=f"client {MOST_CLIENTS}") is None


def test_gaps_between_tokens_are_each_rows_own() -> None:
    clock = VirtualClock()
    metrics = MetricsCollector("m", clock.now)
    for at, row_ids in ((0.0, (1, 2)), (0.5, (1,)), (0.75, (1, 2)), (0.75, (3,))):
        clock.time = at
        metrics.receive(report(StepStats(), 0.1, 0, *(token(row_id, 5) for row_id in row_ids)))
    name = "vllm:inter_token_latency_seconds"
    check(metrics, {f"{name}_count": 3, f"{name}_sum": 0.5 + 0.25 + 0.75})
    bounds = ("0.2", "0.3", "0.5", "0.75", "+Inf")
    assert [read(metrics, f"{name}_bucket", le=bound) for bound in bounds] == [0, 1, 2, 3, 3]


def test_rows_that_ended_are_not_remembered() -> None:
    """A report that comes after its row was cancelled used to leave an entry behind for good."""
    clock = VirtualClock()
    metrics = MetricsCollector("m", clock.now)
    metrics.on_end(request(1), None, 0.0)
    metrics.receive(report(StepStats(), 0.1, 0, token(1, 5)))
    clock.time = FORGOTTEN + 1.0
    metrics.receive(report(StepStats(), 0.1, 0, token(2, 5)))
    assert set(metrics._latest_tokens) == {2}


def test_rows_that_make_way_are_counted_by_cause(metrics: MetricsCollector) -> None:
    sliced, paused = HandedBack((1, 2), Cause.SLICE), HandedBack((3,), Cause.PAUSE, dropped=(3,))
    back = (sliced, paused, HandedBack((4, 5), Cause.OVERFLOW, dropped=(5,)))
    metrics.receive(StepReport(0, 1, (), BatchShape(), 0.1, handed_back=back, swapped_out=(6, 7)))
    for cause, kept, dropped in (("slice", 2, 0), ("pause", 0, 1), ("overflow", 1, 1), ("fault", 0, 0)):
        check(metrics, {"handed_back_rows_total": kept}, cause=cause, kv="kept")
        check(metrics, {"handed_back_rows_total": dropped}, cause=cause, kv="dropped")
    check(metrics, {"vllm:num_preemptions_total": 5})


def test_predicted_serving_times_are_judged_where_the_batch_ran_as_planned(metrics: MetricsCollector) -> None:
    for estimate, intact in ((3.0, True), (3.0, False), (0.0, True)):
        one = Assignment(Plan((request(),), estimate=estimate), 0, sent=1.0, began=2.0, intact=intact)
        metrics.on_finish(one, 4.0)
    check(metrics, {"serving_time_seconds_sum": 2.0})
    check(metrics, {"serving_time_error_seconds_sum": 1.0, "serving_time_error_seconds_count": 1})


async def test_what_may_be_counted_is_0_before_it_first_happens() -> None:
    """rate() misses the first event of a series that it makes."""
    watched = await counted()
    families = list(watched.metrics.registry.collect())
    missing = [family.name for family in families if not family.samples]
    assert missing == ["lengthwise:http_responses"], "its routes and statuses are not known before"
    names = {sample.name for family in families for sample in family.samples}
    assert len(names) > 50 and not [name for name in names if name.endswith("_created")], "moments of making"
    check(watched.metrics, {"executor_busy_seconds_total": 0}, executor="1")
    for name, label, values in (
        ("vllm:request_success", "finished_reason", ("stop", "length")),
        ("request_failure", "kind", ("cancelled", "deadline", "error", "executor", "scheduler", "shutdown")),
        ("vllm:admission_rejections", "reason", LABELS["vllm:admission_rejections"]["reason"]),
        ("pad_tokens", "phase", ("prefill", "decode")),
    ):
        for value in values:
            check(MetricsCollector("m"), {f"{name}_total": 0}, **{label: value})
    for cause in Cause:
        check(MetricsCollector("m"), {"handed_back_rows_total": 0}, cause=cause, kv="kept")
    check(MetricsCollector("m"), {"vllm:num_preemptions_total": 0})


async def test_responses_are_counted_by_route_and_refusals_by_reason(metrics: MetricsCollector) -> None:
    async with live_server(metrics=metrics) as live:
        for path in ("/health/live", "/v1/models/a", "/v1/models/b", "/x", "/y"):
            await live.get(path)
        live.dispatcher.abort_all("the server is shutting down")
        reason = (await live.refused("/v1/chat/completions", chat_body(), 503))["code"]
        live.dispatcher.executor.alive = False
        assert (await live.get("/health/ready")).status == 503  # a probe is no call that was refused
    for count, route, status in ((1, "/health/live", "200"), (2, "/v1/models/{model}", "404"), (2, "unknown", "404")):
        check(metrics, {"http_responses_total": count}, method="GET", route=route, status=status)
    assert reason in LABELS["vllm:admission_rejections"]["reason"]
    check(metrics, {"vllm:admission_rejections_total": 1}, reason=reason)
    assert read(metrics, "vllm:admission_rejections_total", reason="no_executor") is None


def test_a_live_server_tells_what_it_did(live_url: str) -> None:
    body = b'{"prompt": "the quick", "max_tokens": 5, "ignore_eos": true}'
    urllib.request.urlopen(f"{live_url}/v1/completions", body, timeout=60).close()
    with urllib.request.urlopen(f"{live_url}/metrics", timeout=20) as response:
        families = text_string_to_metric_families(response.read().decode())
        told = {sample.name: sample.value for family in families for sample in family.samples}
    assert told["vllm:generation_tokens_total"] >= 5
    assert told["vllm:num_requests_running"] >= 0
    assert told["lengthwise:executor_up"] == 1
    assert told["process_resident_memory_bytes"] > 1e6
    assert told["lengthwise:event_loop_lag_seconds_count"] >= 0
