"""The line that tells in the log what runs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

from engine.messages import BatchShape, ExecutorDied, StepReport, Tally
from scheduler.clock import background
from server.observe import gauges
from server.observe.gauges import log_load, log_throughput
from server.observe.logs import fields_of
from server.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Busy:
    """A dispatcher's load."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_usage: float = 0.0


def step(prompt: int, generated: int) -> StepReport:
    return StepReport(0, 1, (), BatchShape(1, capacity_tokens=10), 0.1, tally=Tally(prompt=prompt, generated=generated))


def test_a_line_tells_what_runs_and_how_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_load(cast(Any, Busy(3, 2, 0.124)), 10.0, 3.2)
    log_load(cast(Any, Busy(1)), 0.0, 0.0)
    assert caplog.messages == [
        "3 running, 2 waiting; tokens/s: 3.2 generated, 10.0 of prompts; K/V 12 % full",
        "1 running, 0 waiting; tokens/s: 0.0 generated, 0.0 of prompts; K/V 0 % full",
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
    metrics = Metrics("m")
    metrics.receive(step(1000, 1000))
    async with asyncio.timeout(20), background(log_throughput(metrics, cast(Any, Busy(1))), "throughput"):
        assert await told.get() == (0.0, 0.0)
        for report in (step(100, 2), step(0, 30), ExecutorDied(0, "it died")):
            metrics.receive(report)
        while not any(speeds := await told.get()):
            pass
        read, generated = speeds
        assert read / generated == pytest.approx(100 / 32)
        assert await told.get() == (0.0, 0.0)
