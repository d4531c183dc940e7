"""The mean batch that a server tells at /metrics."""

from __future__ import annotations

from loadgen.client.client import Target
from loadgen.compare.run import read_batch_rows
from tests.loadgen.scripted import plain, scripted

METRICS = b"""\
# TYPE lengthwise:batch_rows histogram
lengthwise:batch_rows_bucket{executor="0",le="+Inf"} 2
lengthwise:batch_rows_sum{executor="0"} 10
lengthwise:batch_rows_count{executor="0"} 2
lengthwise:batch_rows_bucket{executor="1",le="+Inf"} 3
lengthwise:batch_rows_sum{executor="1"} 4
lengthwise:batch_rows_count{executor="1"} 3
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
"""


async def test_a_server_is_asked_and_may_have_nothing_to_tell() -> None:
    async with scripted(plain("200 OK", METRICS)) as server:
        assert await read_batch_rows(Target(f"{server.url}/v1")) == (14.0, 5.0)
        assert server.requests[0][0].startswith(b"GET /metrics ")
    for answer in (plain("404 Not Found", b"none"), plain("200 OK", b"<html>{")):
        async with scripted(answer) as server:
            assert await read_batch_rows(Target(server.url)) == (0, 0)
    assert await read_batch_rows(Target("http://127.0.0.1:1")) == (0, 0)
