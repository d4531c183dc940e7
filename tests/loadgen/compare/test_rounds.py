"""Figures from what a server tells at /metrics before and after a run."""

from __future__ import annotations

import pytest

from loadgen.client.client import Target
from loadgen.compare.rounds import NOTHING, compute_figures, parse, scrape
from tests.loadgen.scripted import plain, scripted

BEFORE = """\
# TYPE lengthwise:pad_tokens counter
lengthwise:pad_tokens_total{model_name="m"} 100
# TYPE lengthwise:batch_rows histogram
lengthwise:batch_rows_bucket{le="+Inf"} 2
lengthwise:batch_rows_sum 10
lengthwise:batch_rows_count 2
# TYPE lengthwise:executor_busy_seconds counter
lengthwise:executor_busy_seconds_total{executor="0"} 1
lengthwise:executor_busy_seconds_total{executor="1"} 1
"""
AFTER = (
    BEFORE.replace("} 100", "} 160").replace("sum 10", "sum 40").replace("count 2", "count 12")
    + """\
lengthwise:executor_busy_seconds_total{executor="2"} 7
# TYPE lengthwise:predicted_length_error_tokens histogram
lengthwise:predicted_length_error_tokens_bucket{le="+Inf"} 4
lengthwise:predicted_length_error_tokens_sum -20
lengthwise:predicted_length_error_tokens_count 4
"""
)


def test_figures_are_of_the_time_between() -> None:
    assert compute_figures(parse(BEFORE), parse(AFTER)) == {
        "server_pad_tokens": 60.0,
        "server_mean_batch_rows": 3.0,
        "server_mean_prediction_error_tokens": -5.0,
        "server_load_imbalance_s": pytest.approx((98 / 9) ** 0.5),
    }


def test_what_is_not_told_makes_no_figure() -> None:
    assert compute_figures(NOTHING, NOTHING) == {}
    assert compute_figures(NOTHING, parse("vllm:num_requests_running 3\n")) == {}
    lone = 'lengthwise:executor_busy_seconds_total{executor="0"} 9\n'
    assert compute_figures(NOTHING, parse(lone)) == {}


async def test_a_server_is_asked_and_may_have_nothing_to_tell() -> None:
    async with scripted(plain("200 OK", AFTER.encode())) as server:
        assert await scrape(Target(f"{server.url}/v1")) == parse(AFTER)
        assert server.requests[0][0].startswith(b"GET /metrics ")
    for answer in (plain("404 Not Found", b"none"), plain("200 OK", b"<html>{")):
        async with scripted(answer) as server:
            assert await scrape(Target(server.url)) == NOTHING
    assert await scrape(Target("http://127.0.0.1:1")) == NOTHING
