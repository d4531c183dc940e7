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
from tests.server.counted import counted
from tests.server.live import chat_body, live_server


def read(metrics: MetricsCollector, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


def report(tally: StepStats = StepStats(), seconds: float = 0.5, executor: int = 0, *updates: RowUpdate) -> StepReport:  # noqa: B008
    return StepReport(executor, 1, updates, BatchShape(), seconds, tally=tally)


def ended(generated: int, predicted: float | None = None) -> Request:
    one = request(arrival=10.0, max_tokens=16)
    one.generated, one.predicted_length = generated, predicted
    one.times.started, one.times.first_token = 11.0, 12.0
    return one


def test_tokens_are_counted_by_what_they_were_good_for() -> None:
    metrics = MetricsCollector("m")
    metrics.receive(report(StepStats(prompt=10, pad=3, generated=2)))
    metrics.receive(report(StepStats(generated=3, invalid=1, reads=40, pad_reads=9, invalid_reads=10), executor=1))
    metrics.receive(report(seconds=0.0))  # its last rows were cancelled
    metrics.receive(ExecutorDied(1, "fire"))
    names = ("vllm:prompt_tokens", "vllm:generation_tokens", "lengthwise:invalid_tokens", "lengthwise:decode_reads")
    assert [read(metrics, f"{name}_total") for name in names] == [10, 5, 1, 40]
    pads = [read(metrics, "lengthwise:pad_tokens_total", phase=phase) for phase in ("prefill", "decode")]
    assert pads == [3, 9], "padding that decode steps read counts too"
    assert read(metrics, "lengthwise:executor_busy_seconds_total", executor="1") == 0.5
    assert (read(metrics, "lengthwise:batch_rows_sum"), read(metrics, "lengthwise:batch_rows_count")) == (4, 1)
    assert read(metrics, "vllm:iteration_tokens_total_sum") == 15
    assert read(metrics, "lengthwise:step_seconds_count") == 2
    assert read(metrics, "lengthwise:executor_deaths_total") == 1


def test_requests_are_timed_from_their_arrival() -> None:
    metrics = MetricsCollector("m")
    metrics.on_end(ended(7, predicted=10.0), FinishReason.STOP, 15.0)
    metrics.on_end(ended(7), FinishReason.LENGTH, 15.0)
    metrics.on_end(ended(3), FinishReason.ERROR, 15.0)
    metrics.on_end(ended(3), None, 15.0)
    assert read(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    sums = ("vllm:request_queue_time", "vllm:e2e_request_latency")
    assert [read(metrics, f"{name}_seconds_sum") for name in sums] == [2.0, 10.0]
    parts = ("inference_time", "prefill_time", "decode_time", "time_per_output_token")
    assert [read(metrics, f"vllm:request_{name}_seconds_sum") for name in parts] == [8.0, 2.0, 6.0, 1.0]
    assert [read(metrics, "lengthwise:request_failure_total", kind=kind) for kind in ("error", "cancelled")] == [1, 1]


async def test_the_first_token_is_timed_when_it_comes_and_not_when_the_answer_ends() -> None:
    watched = await counted()
    one = watched.dispatcher.submit(range(4), SamplingParams(max_tokens=8), arrival=0.0)
    watched.dispatcher.dispatch()
    for watched.clock.time in (3.0, 4.0):
        watched.dispatcher.receive(watched.ports[0].report(token(one.row_id, 5)))
    name = "vllm:time_to_first_token_seconds"
    assert (watched.read(f"{name}_count"), watched.read(f"{name}_sum")) == (1, 3.0)


def test_predictions_are_judged_by_what_came() -> None:
    metrics = MetricsCollector("m")
    for predicted, generated in ((10.0, 8), (4.0, 10), (None, 9)):
        metrics.on_end(ended(generated, predicted), FinishReason.STOP, 15.0)
    assert read(metrics, "lengthwise:request_predicted_tokens_sum") == 14.0
    assert read(metrics, "lengthwise:predicted_length_error_tokens_sum") == 8.0
    assert read(metrics, "lengthwise:predicted_length_error_tokens_count") == 2
    assert read(metrics, "lengthwise:overpredicted_tokens_total") == 2.0
    assert read(metrics, "lengthwise:underpredicted_tokens_total") == 6.0
    assert read(metrics, "lengthwise:predicted_length_relative_error_sum") == pytest.approx(0.25 + 0.6)
    assert read(metrics, "lengthwise:predicted_within_twice_total") == 1


def test_a_prediction_that_repeats_max_tokens_or_whose_answer_was_cut_is_not_judged() -> None:
    """Of 757 answers 519 were predicted to have their max_tokens, had them, and made the median error 4 tokens."""
    metrics, most = MetricsCollector("m"), ended(1).sampling.max_tokens
    metrics.on_end(ended(most, predicted=float(most)), FinishReason.LENGTH, 15.0)
    metrics.on_end(ended(3, predicted=float(most)), FinishReason.STOP, 15.0)
    assert read(metrics, "lengthwise:request_predicted_tokens_count") == 2
    assert read(metrics, "lengthwise:predicted_length_error_tokens_count") == 0
    inside, outside = ended(3, predicted=4.0), ended(9, predicted=4.0)
    for one in (inside, outside):
        one.distribution = LengthDistribution.of(np.array([3, 4, 5], np.float32), np.ones(3, np.float32))
        metrics.on_end(one, FinishReason.STOP, 15.0)
    assert read(metrics, "lengthwise:predicted_length_error_tokens_count") == 2
    assert read(metrics, "lengthwise:predicted_within_twice_total") == 1
    assert read(metrics, "lengthwise:predicted_intervals_total", inside="true") == 1
    assert read(metrics, "lengthwise:predicted_intervals_total", inside="false") == 1


def test_expected_ends_are_judged_by_when_they_came() -> None:
    metrics = MetricsCollector("m")
    for at in (10.0, 13.0, 14.0):  # they end at 15, after 5, 2 and 1 s
        one = ended(8)
        one.expected = Expected(at, 0, 0.0, point=2.0, spread=1.0, low=1.5, median=2.0, high=4.0)
        metrics.on_end(one, FinishReason.STOP, 15.0)
    places = ("below", "inside", "above")
    assert [read(metrics, "lengthwise:eta_answers_total", interval=place) for place in places] == [1, 1, 1]
    assert read(metrics, "lengthwise:eta_relative_error_sum") == pytest.approx(3 / 5 + 0.0 + 1 / 1)
    assert read(metrics, "lengthwise:promised_latency_ratio_sum") == pytest.approx(4 / 5 + 4 / 2 + 4 / 1)
    assert one.expected is not None
    one.promised, one.expected = 14.9, replace(one.expected, high=0.9)
    metrics.on_end(one, FinishReason.STOP, 15.0)
    one.promised, one.expected = 20.0, replace(one.expected, high=6.0)
    metrics.on_end(one, FinishReason.ERROR, 15.0)
    metrics.on_end(one, None, 15.0)
    counts = {(kept, asked): 0.0 for kept in ("true", "false") for asked in ("true", "false")}
    found = {key: read(metrics, "lengthwise:promises_total", kept=key[0], asked=key[1]) for key in counts}
    ratios = read(metrics, "lengthwise:promised_latency_ratio_sum")
    assert ratios == pytest.approx(4 / 5 + 4 / 2 + 4 / 1), "what clients choose tells nothing of estimates"
    assert found == counts | {("true", "false"): 2, ("false", "false"): 1, ("false", "true"): 2}, (
        "failed is broken, left is not"
    )


def test_service_is_counted_by_client_and_labels_are_bounded() -> None:
    metrics = MetricsCollector("m")
    for number in range(MOST_CLIENTS + 3):
        one = ended(8)
        one.client = f"client {number}" if number else ""
        metrics.on_end(one, FinishReason.STOP, 15.0)
    had = service_had(ended(8))
    name = "lengthwise:client_service_tokens_total"
    assert [read(metrics, name, client=one) for one in ("all", "client 1", "other")] == [had, had, 3 * had]
    assert read(metrics, name, client=f"client {MOST_CLIENTS}") is None


def test_gaps_between_tokens_are_each_rows_own() -> None:
    clock = VirtualClock()
    metrics = MetricsCollector("m", clock.now)
    for at, row_ids in ((0.0, (1, 2)), (0.5, (1,)), (0.75, (1, 2)), (0.75, (3,))):
        clock.time = at
        metrics.receive(report(StepStats(), 0.1, 0, *(token(row_id, 5) for row_id in row_ids)))
    name = "vllm:inter_token_latency_seconds"
    assert (read(metrics, f"{name}_count"), read(metrics, f"{name}_sum")) == (3, 0.5 + 0.25 + 0.75)
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


def test_rows_that_make_way_are_counted_by_cause() -> None:
    metrics = MetricsCollector("m")
    back = (
        HandedBack((1, 2), Cause.SLICE),
        HandedBack((3,), Cause.PAUSE, dropped=(3,)),
        HandedBack((4, 5), Cause.OVERFLOW, dropped=(5,)),
    )
    metrics.receive(StepReport(0, 1, (), BatchShape(), 0.1, handed_back=back, swapped_out=(6, 7)))
    kept, dropped = (
        {cause.value: read(metrics, "lengthwise:handed_back_rows_total", cause=cause, kv=kv) for cause in Cause}
        for kv in ("kept", "dropped")
    )
    assert kept == {"slice": 2, "pause": 0, "overflow": 1, "fault": 0}
    assert dropped == {"slice": 0, "pause": 1, "overflow": 1, "fault": 0}
    assert read(metrics, "vllm:num_preemptions_total") == 5


def test_predicted_serving_times_are_judged_where_the_batch_ran_as_planned() -> None:
    metrics = MetricsCollector("m")
    for estimate, intact in ((3.0, True), (3.0, False), (0.0, True)):
        one = Assignment(Plan((request(),), estimate=estimate), 0, sent=1.0, began=2.0, intact=intact)
        metrics.on_finish(one, 4.0)
    assert read(metrics, "lengthwise:serving_time_seconds_sum") == 2.0
    assert read(metrics, "lengthwise:serving_time_error_seconds_sum") == 1.0
    assert read(metrics, "lengthwise:serving_time_error_seconds_count") == 1


async def test_what_may_be_counted_is_0_before_it_first_happens() -> None:
    """rate() misses the first event of a series that it makes."""
    families = list((await counted()).metrics.registry.collect())
    counters = {sample.name: sample.labels for family in families for sample in family.samples}
    missing = [f.name for f in families if not f.samples]
    assert missing == ["lengthwise:http_responses"], "its routes and statuses are not known before"
    assert counters["vllm:num_preemptions_total"] == {"model_name": "m"}
    metrics = MetricsCollector("m")
    for name, label, values in (
        ("vllm:request_success", "finished_reason", ("stop", "length")),
        ("lengthwise:request_failure", "kind", ("cancelled", "deadline", "error", "executor", "scheduler", "shutdown")),
        ("vllm:admission_rejections", "reason", tuple(LABELS["vllm:admission_rejections"]["reason"])),
        ("lengthwise:pad_tokens", "phase", ("prefill", "decode")),
    ):
        assert [read(metrics, f"{name}_total", **{label: value}) for value in values] == [0] * len(values)
    backs = [read(metrics, "lengthwise:handed_back_rows_total", cause=one, kv="kept") for one in Cause]
    assert backs == [0] * len(Cause)
    assert (await counted()).read("lengthwise:executor_busy_seconds_total", executor="1") == 0


async def test_moments_of_making_are_left_out() -> None:
    names = {sample.name for family in (await counted()).metrics.registry.collect() for sample in family.samples}
    assert len(names) > 50 and not [name for name in names if name.endswith("_created")]


async def test_responses_are_counted_by_route_and_refusals_by_reason() -> None:
    metrics = MetricsCollector("m")
    async with live_server(metrics=metrics) as live:
        for path in ("/health/live", "/v1/models/a", "/v1/models/b", "/x", "/y"):
            await live.get(path)
        live.dispatcher.abort_all("the server is shutting down")
        status, reply = await live.post("/v1/chat/completions", chat_body())
        assert status == 503 and reply["error"]["code"] in LABELS["vllm:admission_rejections"]["reason"]
        live.dispatcher.executor.alive = False
        assert (await live.get("/health/ready")).status == 503  # a probe is no call that was refused
    counted = [
        read(metrics, "lengthwise:http_responses_total", method="GET", route=route, status=status)
        for route, status in (("/health/live", "200"), ("/v1/models/{model}", "404"), ("unknown", "404"))
    ]
    assert counted == [1, 2, 2]
    assert read(metrics, "vllm:admission_rejections_total", reason=reply["error"]["code"]) == 1
    assert read(metrics, "vllm:admission_rejections_total", reason="no_executor") is None


def test_a_live_server_tells_what_it_did(live_url: str) -> None:
    body = b'{"prompt": "the quick", "max_tokens": 5, "ignore_eos": true}'
    urllib.request.urlopen(f"{live_url}/v1/completions", body, timeout=60).close()
    with urllib.request.urlopen(f"{live_url}/metrics", timeout=20) as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert families["vllm:generation_tokens"].samples[0].value >= 5
    assert families["vllm:num_requests_running"].samples[0].value >= 0
    assert families["lengthwise:executor_up"].samples[0].value == 1
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    lag = {sample.name: sample.value for sample in families["lengthwise:event_loop_lag_seconds"].samples}
    assert lag["lengthwise:event_loop_lag_seconds_count"] >= 0
