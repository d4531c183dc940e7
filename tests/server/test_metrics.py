"""What is counted, in numbers that are known; and that a scraper finds it on a live server."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from engine.messages import BatchShape, ExecutorDied, FinishReason, StepReport, Tally
from scheduler.request import Request
from server.metrics import Metrics
from tests.scheduler.fakes import request


def read(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


def report(tally: Tally, seconds: float = 0.5, executor: int = 0) -> StepReport:
    return StepReport(executor, 1, (), BatchShape(), seconds, tally=tally)


def ended(generated: int, predicted: float | None = None) -> Request:
    one = request(arrival=10.0)
    one.generated, one.predicted_length = generated, predicted
    one.times.started, one.times.first_token = 11.0, 12.0
    return one


def test_tokens_are_counted_by_what_they_were_good_for() -> None:
    metrics = Metrics("m")
    metrics.reported(report(Tally(prompt=10, pad=3, generated=2)))
    metrics.reported(report(Tally(generated=3, invalid=1), executor=1))
    metrics.reported(ExecutorDied(1, "fire"))
    names = ("vllm:prompt_tokens", "vllm:generation_tokens", "lengthwise:pad_tokens", "lengthwise:invalid_tokens")
    assert [read(metrics, f"{name}_total") for name in names] == [10, 5, 3, 1]
    assert read(metrics, "lengthwise:executor_busy_seconds_total", executor="1") == 0.5
    assert (read(metrics, "lengthwise:batch_rows_sum"), read(metrics, "lengthwise:batch_rows_count")) == (4, 1)
    assert read(metrics, "lengthwise:executor_deaths_total") == 1


def test_requests_are_timed_from_their_arrival() -> None:
    metrics = Metrics("m")
    metrics.ended(ended(7, predicted=10.0), FinishReason.STOP, 15.0)
    metrics.ended(ended(7), FinishReason.LENGTH, 15.0)
    metrics.ended(ended(3), FinishReason.ERROR, 15.0)
    metrics.ended(ended(3), None, 15.0)
    assert read(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    sums = ("vllm:request_queue_time", "vllm:time_to_first_token", "vllm:e2e_request_latency")
    assert [read(metrics, f"{name}_seconds_sum") for name in sums] == [2.0, 4.0, 10.0]
    assert read(metrics, "lengthwise:predicted_length_error_tokens_sum") == 3.0
    assert read(metrics, "lengthwise:predicted_length_error_tokens_count") == 1
    assert [read(metrics, "lengthwise:request_failure_total", kind=kind) for kind in ("error", "cancelled")] == [1, 1]


def test_a_live_server_tells_what_it_did(live_url: str) -> None:
    body = b'{"prompt": "the quick", "max_tokens": 5, "ignore_eos": true}'
    urllib.request.urlopen(f"{live_url}/v1/completions", body, timeout=60).close()
    with urllib.request.urlopen(f"{live_url}/metrics", timeout=20) as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert families["vllm:generation_tokens"].samples[0].value >= 5
    assert families["vllm:num_requests_running"].samples[0].value >= 0
