"""The line that tells in the log what runs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

from engine.messages import BatchShape, ExecutorDied, StepReport, Tally
from scheduler.request_table import RequestTable
from server.observe import gauges
from server.observe.gauges import Throughput, log_throughput
from server.observe.logs import fields_of


@dataclass(frozen=True, slots=True)
class Busy:
    """A dispatcher's load."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_usage: float = 0.0


def step(prompt: int, generated: int) -> StepReport:
    return StepReport(0, 1, (), BatchShape(1, capacity_tokens=10), 0.1, tally=Tally(prompt=prompt, generated=generated))


def test_a_line_tells_what_came_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = Throughput()
    for report in (step(100, 2), step(0, 30), ExecutorDied(0, "it died")):
        one.receive(report)
    one.tell(cast(Any, Busy(3, 2, 0.124)), 10.0)
    one.tell(cast(Any, Busy(1)), 10.0)
    assert caplog.messages == [
        "3 running, 2 waiting; tokens/s: 3.2 generated, 10.0 of prompts; K/V 12 % full",
        "1 running, 0 waiting; tokens/s: 0.0 generated, 0.0 of prompts; K/V 0 % full",
    ]
    assert fields_of(caplog.records[0])["generated_tokens_per_s"] == 3.2


def test_a_server_at_rest_says_nothing_but_what_ended_in_between_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = Throughput()
    one.tell(cast(Any, Busy()), 10.0)
    assert caplog.messages == []
    one.receive(step(5, 5))
    one.tell(cast(Any, Busy()), 10.0)
    assert len(caplog.messages) == 1


async def test_lines_come_while_something_runs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(gauges, "INTERVAL", 0.001)
    told = asyncio.Event()

    class Told(Throughput):
        def tell(self, load: RequestTable, seconds: float) -> None:
            assert seconds >= 0.001
            super().tell(load, seconds)
            told.set()

    async with asyncio.timeout(20), log_throughput(Told(), cast(Any, Busy(1))):
        await told.wait()
    assert caplog.messages
