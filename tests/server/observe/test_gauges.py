"""The gauges of /metrics, read when they are asked for; the loop's lag, and the log's line that tells what runs."""

import asyncio
import logging
import os
import time
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

import pytest

from engine.messages import BatchShape, ExecutorDied, StepReport, StepStats
from engine.sampling.params import SamplingParams
from scheduler.clock import background, watch_lag
from scheduler.wait_estimate.by_arrival import ArrivalComparison
from server.observe import gauges
from server.observe.gauges import LAG_INTERVAL, log_load, log_throughput
from server.observe.logs import QueuedLines, fields_of
from server.observe.metrics import MetricsCollector
from server.version import VERSION
from tests.server.counted import Counted, counted

PARAMS = SamplingParams(max_tokens=8)


@pytest.fixture
async def watched() -> Counted:
    return await counted()


async def test_queues_and_executors_are_told_as_they_are(watched: Counted) -> None:
    for _ in range(10):
        watched.dispatcher.submit(range(5), PARAMS)
    watched.dispatcher.dispatch()
    assert watched.read("vllm:num_requests_running") == 0
    assert watched.read("vllm:num_requests_waiting") == 10, "executors have 8 of them and have read nothing"
    assert watched.read("lengthwise:waiting_prompt_tokens") == 50
    watched.dispatcher.receive(replace(watched.ports[0].report(), begun=(0, 1, 2)))
    assert watched.read("vllm:num_requests_running") == 3
    assert watched.read("vllm:num_requests_waiting") == 7
    assert watched.read("lengthwise:waiting_prompt_tokens") == 35
    assert watched.read("lengthwise:executor_slots", executor="1") == 4
    assert watched.read("lengthwise:info", version=VERSION, strategy="baton-pd") == 1


async def test_cells_in_use_are_a_share_of_what_there_is(watched: Counted) -> None:
    requests = [watched.dispatcher.submit(range(5), PARAMS) for _ in range(8)]
    watched.dispatcher.dispatch()
    shape = BatchShape(rows=3, staged=2, start=10, end=60, columns=80, capacity_tokens=600)
    watched.dispatcher.receive(StepReport(1, 1, (), shape, 0.1))
    assert watched.read("vllm:kv_cache_usage_perc") == 150 / 1600
    assert watched.read("lengthwise:kv_used_tokens", executor="0") == 0.0
    assert watched.read("lengthwise:kv_capacity_tokens", executor="1") == 600
    assert watched.read("lengthwise:executor_rows", executor="1") == 3
    assert watched.read("lengthwise:staged_rows", executor="1") == 2
    for one in requests:
        watched.dispatcher.cancel(one)
    watched.dispatcher.receive(StepReport(1, 2, (), BatchShape(capacity_tokens=600), 0.0))
    names = ("lengthwise:kv_used_tokens", "lengthwise:executor_rows", "lengthwise:staged_rows")
    idle = [watched.read(name, executor="1") for name in names]
    assert idle == [0, 0, 0]
    assert watched.read("lengthwise:kv_capacity_tokens", executor="1") == 600


@pytest.mark.parametrize(
    "name", ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "cache_config_info"]
)
async def test_what_routers_scrape_is_one_series_however_many_executors_there_are(watched: Counted, name: str) -> None:
    """By the names that llm-d's endpoint picker reads of vLLM; it takes one series a pod."""
    family = next(one for one in watched.metrics.registry.collect() if one.name == f"vllm:{name}")
    (sample,) = family.samples
    blocks = {"block_size": "64", "num_gpu_blocks": str(2000 // 64)} if name == "cache_config_info" else {}
    assert sample.labels == {"model_name": "m", **blocks}


async def test_the_age_of_a_step_counts_from_the_last_sign_of_life_or_from_the_order(watched: Counted) -> None:
    """An executor that had nothing to do for an hour is not an hour late when it gets something."""

    def age() -> float | None:
        return watched.read("lengthwise:step_age_seconds", executor="0")

    watched.metrics.receive(watched.ports[0].report())
    watched.clock.time = 3600.0
    assert age() == 0.0
    watched.dispatcher.submit(range(5), PARAMS)
    watched.dispatcher.dispatch()
    watched.clock.time = 3607.0
    assert age() == 7.0
    watched.metrics.receive(watched.ports[0].report())
    watched.clock.time = 3609.0
    assert age() == 2.0


async def test_what_the_order_brings_is_told_beside_the_order_of_arrival(watched: Counted) -> None:
    name = "lengthwise:order_latency_seconds"
    assert watched.read(name, order="served") is None, "before enough answers waited"
    watched.dispatcher.waits._by_arrival = inf, ArrivalComparison(40, 30, 5.5, 5.0, 0.29, 0.56, 3.0)
    assert (watched.read(name, order="served"), watched.read(name, order="arrival")) == (5.5, 5)
    name = "lengthwise:order_normalized_latency_seconds"
    assert (watched.read(name, order="served"), watched.read(name, order="arrival")) == (0.29, 0.56)
    assert watched.read("lengthwise:order_latest_seconds") == 3


async def test_a_dead_executor_is_told(watched: Counted) -> None:
    assert watched.read("lengthwise:executor_up", executor="0") == 1
    watched.dispatcher.receive(ExecutorDied(0, "fire"))
    assert [watched.read("lengthwise:executor_up", executor=name) for name in ("0", "1")] == [0, 1]


async def test_memory_and_predictions_are_told(watched: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = QueuedLines(os.open(os.devnull, os.O_WRONLY))
    handler.dropped = 5
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    assert watched.read("lengthwise:host_memory_bytes") == 4096
    assert watched.read("lengthwise:host_memory_rows") == 2
    assert watched.read("lengthwise:predictions_total", source="max_tokens") == 2
    assert watched.read("lengthwise:prediction_timeouts_total") == 2
    assert watched.read("lengthwise:length_cache_lookups_total") == 0
    assert watched.read("lengthwise:journal_written_total") == 7
    assert watched.read("lengthwise:journal_lost_total") == 3
    assert watched.read("lengthwise:log_lines_dropped_total") == 5
    assert watched.read("lengthwise:length_rmse_tokens") == 3.0
    assert watched.read("lengthwise:serving_time_lessons_total") == 2
    assert watched.read("lengthwise:serving_time_rmse_seconds") == 0.75
    assert watched.metrics.registry.get_sample_value("process_resident_memory_bytes")


async def test_what_blocks_the_event_loop_is_measured() -> None:
    seen: asyncio.Queue[float] = asyncio.Queue()
    async with background(watch_lag(seen.put_nowait, LAG_INTERVAL), "lag"):
        await asyncio.sleep(0)  # the first look begins
        time.sleep(LAG_INTERVAL + 0.2)
        assert await seen.get() >= 0.15


@dataclass(frozen=True, slots=True)
class Busy:
    """A dispatcher's load."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_usage: float = 0.0


def step(prompt: int, generated: int) -> StepReport:
    return StepReport(
        0, 1, (), BatchShape(1, capacity_tokens=10), 0.1, tally=StepStats(prompt=prompt, generated=generated)
    )


def test_a_line_tells_what_runs_and_how_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_load(cast(Any, Busy(3, 2, 0.124)), 10.0, 3.2)
    log_load(cast(Any, Busy(1)), 0.0, 0.0)
    assert caplog.messages == [
        "3 running, 2 waiting; tokens/s: 3.2 generated, 10.0 of prompts; KV cache 12 % full",
        "1 running, 0 waiting; tokens/s: 0.0 generated, 0.0 of prompts; KV cache 0 % full",
    ]
    assert fields_of(caplog.records[0])["generated_tokens_per_s"] == 3.2


def test_a_server_at_rest_says_nothing_but_what_ended_in_between_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_load(cast(Any, Busy()), 0.0, 0.0)
    assert caplog.messages == []
    log_load(cast(Any, Busy()), 0.5, 0.5)
    assert len(caplog.messages) == 1


async def test_each_line_tells_what_came_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "INTERVAL", 0.001)
    told: asyncio.Queue[tuple[float, float]] = asyncio.Queue()
    monkeypatch.setattr(gauges, "log_load", lambda load, read, generated: told.put_nowait((read, generated)))
    metrics = MetricsCollector("m")
    metrics.receive(step(1000, 1000))
    async with background(log_throughput(metrics, cast(Any, Busy(1))), "throughput"):
        assert await told.get() == (0.0, 0.0)
        for report in (step(100, 2), step(0, 30), ExecutorDied(0, "it died")):
            metrics.receive(report)
        while not any(speeds := await told.get()):
            pass
        read, generated = speeds
        assert read / generated == pytest.approx(100 / 32)
        assert await told.get() == (0.0, 0.0)
