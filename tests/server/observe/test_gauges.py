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
from tests.server.counted import Counted, check, counted

PARAMS = SamplingParams(max_tokens=8)


@pytest.fixture
async def watched() -> Counted:
    return await counted()


async def test_queues_and_executors_are_told_as_they_are(watched: Counted) -> None:
    running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
    for _ in range(10):
        watched.dispatcher.submit(range(5), PARAMS)
    watched.dispatcher.dispatch()
    # Executors have 8 of them and have read nothing.
    check(watched.metrics, {running: 0, waiting: 10, "waiting_prompt_tokens": 50})
    watched.dispatcher.receive(replace(watched.ports[0].report(), begun=(0, 1, 2)))
    check(watched.metrics, {running: 3, waiting: 7, "waiting_prompt_tokens": 35})
    check(watched.metrics, {"executor_slots": 4}, executor="1")
    check(watched.metrics, {"info": 1}, version=VERSION, strategy="baton-pd")


async def test_cells_in_use_are_a_share_of_what_there_is(watched: Counted) -> None:
    requests = [watched.dispatcher.submit(range(5), PARAMS) for _ in range(8)]
    watched.dispatcher.dispatch()
    shape = BatchShape(rows=3, staged=2, start=10, end=60, columns=80, capacity_tokens=600)
    watched.dispatcher.receive(StepReport(1, 1, (), shape, 0.1))
    check(watched.metrics, {"vllm:kv_cache_usage_perc": 150 / 1600})
    check(watched.metrics, {"kv_used_tokens": 0.0}, executor="0")
    check(watched.metrics, {"kv_capacity_tokens": 600, "executor_rows": 3, "staged_rows": 2}, executor="1")
    for one in requests:
        watched.dispatcher.cancel(one)
    watched.dispatcher.receive(StepReport(1, 2, (), BatchShape(capacity_tokens=600), 0.0))
    idle = {"kv_used_tokens": 0, "executor_rows": 0, "staged_rows": 0, "kv_capacity_tokens": 600}
    check(watched.metrics, idle, executor="1")


async def test_what_routers_scrape_is_one_series_however_many_executors_there_are(watched: Counted) -> None:
    """By the names that llm-d's endpoint picker reads of vLLM; it takes one series a pod."""
    families = {one.name: one.samples for one in watched.metrics.registry.collect()}
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "cache_config_info"):
        (sample,) = families[f"vllm:{name}"]
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
    assert watched.read("lengthwise:order_latency_seconds", order="served") is None, "before enough answers waited"
    watched.dispatcher.waits._by_arrival = inf, ArrivalComparison(40, 30, 5.5, 5.0, 0.29, 0.56, 3.0)
    for order, seconds, normalized in (("served", 5.5, 0.29), ("arrival", 5, 0.56)):
        told = {"order_latency_seconds": seconds, "order_normalized_latency_seconds": normalized}
        check(watched.metrics, told, order=order)
    check(watched.metrics, {"order_latest_seconds": 3})


async def test_a_dead_executor_is_told(watched: Counted) -> None:
    check(watched.metrics, {"executor_up": 1}, executor="0")
    watched.dispatcher.receive(ExecutorDied(0, "fire"))
    check(watched.metrics, {"executor_up": 0}, executor="0")
    check(watched.metrics, {"executor_up": 1}, executor="1")


async def test_memory_and_predictions_are_told(watched: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = QueuedLines(os.open(os.devnull, os.O_WRONLY))
    handler.dropped = 5
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    check(watched.metrics, {"host_memory_bytes": 4096, "host_memory_rows": 2, "log_lines_dropped_total": 5})
    check(watched.metrics, {"prediction_timeouts_total": 2, "length_cache_lookups_total": 0, "length_rmse_tokens": 3.0})
    check(watched.metrics, {"journal_written_total": 7, "journal_lost_total": 3})
    check(watched.metrics, {"serving_time_lessons_total": 2, "serving_time_rmse_seconds": 0.75})
    check(watched.metrics, {"predictions_total": 2}, source="max_tokens")
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
    tally = StepStats(prompt=prompt, generated=generated)
    return StepReport(0, 1, (), BatchShape(1, capacity_tokens=10), 0.1, tally=tally)


def test_a_line_tells_what_runs_and_how_fast_unless_nothing_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for busy, read, generated in ((Busy(3, 2, 0.124), 10.0, 3.2), (Busy(1), 0, 0), (Busy(), 0, 0), (Busy(), 0.5, 0.5)):
        log_load(cast(Any, busy), read, generated)
    assert caplog.messages == [
        "3 running, 2 waiting; tokens/s: 3.2 generated, 10.0 of prompts; KV cache 12 % full",
        "1 running, 0 waiting; tokens/s: 0.0 generated, 0.0 of prompts; KV cache 0 % full",
        "0 running, 0 waiting; tokens/s: 0.5 generated, 0.5 of prompts; KV cache 0 % full",  # ended in between
    ]
    assert fields_of(caplog.records[0])["generated_tokens_per_s"] == 3.2


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
