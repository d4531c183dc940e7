"""What the host costs: `python -P -m loadgen.experiments.engine.host [STREAMS [TOKENS]]`.

Serves on a virtual H100 and reads many streams at once with a client that only counts events. It prints tokens/s, the
CPU of server and client a token, and events a read: 1 where each step of a stream is one write. A window counts from
when all streams run to when the first one ends.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import orjson
import psutil
import uvloop

DEVICE = "virtual:h100-8b"
WARM = 20
"""Tokens of each stream before the window."""

END = b"\r\n0\r\n\r\n"


class Stream(asyncio.Protocol):
    """One answer, of which only events are counted."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.events = self.reads = 0
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self.reads += 1
        self.ended = data.endswith(END)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts since the start, times in seconds."""

    time: float
    server: float
    client: float
    events: int
    reads: int


def take_sample(server: psutil.Process, streams: Sequence[Stream]) -> Sample:
    """The counts as they are now."""
    cpu = sum(server.cpu_times()[:2])
    events, reads = sum(one.events for one in streams), sum(one.reads for one in streams)
    return Sample(time.perf_counter(), cpu, time.process_time(), events, reads)


async def measure(server: psutil.Process, port: int, count: int, tokens: int) -> tuple[Sample, Sample]:
    """The begin and the end of the window."""
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "stream": True}
    body = orjson.dumps(asked)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    loop, streams = asyncio.get_running_loop(), [Stream(head.encode() + body) for _ in range(count)]
    for stream in streams:
        await loop.create_connection(partial(_itself, stream), "127.0.0.1", port)
    while min(one.events for one in streams) < WARM:
        await asyncio.sleep(0.02)
    begin = end = take_sample(server, streams)
    while not any(one.ended for one in streams):
        end = take_sample(server, streams)
        await asyncio.sleep(0.1)
    return begin, end


def _itself(stream: Stream) -> Stream:
    return stream


def main(count: int = 256, tokens: int = 500) -> None:
    """Serve, measure and print."""
    flags = ["--device", DEVICE, "--port", "0", "--max-num-seqs", str(count), "--max-num-batched-tokens", "2048"]
    command = [sys.executable, "-P", "-m", "lengthwise", "serve", *flags, "--embedding-model", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(found for line in process.stdout if (found := re.search(r"ready on http://.*:(\d+)", line)))
            begin, end = uvloop.run(measure(psutil.Process(process.pid), int(found[1]), count, tokens))
        finally:
            process.terminate()
    events, seconds = end.events - begin.events, end.time - begin.time
    print(
        f"{count} streams: {events / seconds:.0f} tokens/s, {1e3 * count * seconds / events:.2f} ms a step; "
        f"CPU a token: server {1e6 * (end.server - begin.server) / events:.1f} µs, client "
        f"{1e6 * (end.client - begin.client) / events:.1f}; {events / (end.reads - begin.reads):.3f} events a read"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
