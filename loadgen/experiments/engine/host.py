"""The host's cost: `python -P -m loadgen.experiments.engine.host [STREAMS [TOKENS]]` reads streams of a virtual H100,
and prints tokens/s, relative step time, CPU a token, and events a read.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import numpy as np
import orjson
import psutil
import uvloop
from numpy.typing import NDArray
from safetensors.numpy import save_file

from loadgen.compare.server import run_server
from loadgen.experiments.engine.setup import make_tokenizer, tiny
from loadgen.result_file import PROGRAM
from scheduler.serving_time.presets import PRESETS, VIRTUAL

PRESET = "h100-8b"
WARM = 20  # tokens of each stream before the window

PROMPT = "hello, host"  # a token a letter in its vocabulary

PATIENCE = 60.0  # seconds until an answer is given up

END = b"0\r\n\r\n"


Sample = NDArray[np.float64]


class Stream(asyncio.Protocol):
    """One answer's events."""

    def __init__(self) -> None:
        self.events = self.reads = 0
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self.reads += 1
        self.ended = data.endswith(END)


def take_sample(server: psutil.Process, streams: Sequence[Stream]) -> Sample:
    """Seconds, CPU of server and client, events, reads, and the first stream's events (one a step)."""
    counts, reads = [one.events for one in streams], sum(one.reads for one in streams)
    times = time.perf_counter(), sum(server.cpu_times()[:2]), time.process_time()
    return np.array([*times, sum(counts), reads, max(counts)])


async def measure(server: psutil.Process, port: int, count: int, tokens: int) -> tuple[Sample, Sample]:
    """The begin and the end of the window."""
    body = orjson.dumps({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    connections = [await loop.create_connection(Stream, "127.0.0.1", port) for _ in range(count)]
    for transport, _ in connections:  # together, so that prompts are read together
        transport.write(head.encode() + body)
    streams = [stream for _, stream in connections]
    while min(one.events for one in streams) < WARM:
        await asyncio.sleep(0.02)
    begin = end = take_sample(server, streams)
    while not any(one.ended for one in streams):
        end = take_sample(server, streams)
        await asyncio.sleep(0.1)
    for transport, _ in connections:
        transport.abort()
    await asyncio.sleep(0)  # to close them
    return begin, end


def save_checkpoint(folder: Path) -> None:
    """A model whose tokenizer alone is used."""
    config = tiny(1)
    tokenizer = make_tokenizer(config.vocab_size)
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    save_file({"unread": np.zeros(1)}, folder / "model.safetensors")


def measure_host(count: int = 256, tokens: int = 250) -> dict[str, float]:
    """Tokens/s, a step's relative time, microseconds of CPU a token, events a read."""
    with TemporaryDirectory() as folder:
        save_checkpoint(Path(folder))
        flags = [folder, "--device", f"{VIRTUAL}:{PRESET}", "--port", "0", "--max-num-seqs", str(count)]
        more = ["--max-num-batched-tokens", "2048", "--embedding-model", "none", "--log-level", "warning"]
        with run_server([*PROGRAM, "serve", *flags, *more], Path(folder) / "log", PATIENCE) as server:
            measuring = measure(psutil.Process(server.process.pid), urlsplit(server.url).port or 0, count, tokens)
            begin, end = uvloop.run(asyncio.wait_for(measuring, PATIENCE))
    seconds, cpu, own, events, reads, steps = (end - begin).tolist()
    cost = PRESETS[PRESET].cost.decode(count, len(PROMPT) + int(begin[-1]), int(steps))
    return {
        "streams": count,
        "tokens_s": events / seconds,
        "step_ms": 1e3 * seconds / steps,
        "cost_ms": 1e3 * cost / steps,
        "server_us": 1e6 * cpu / events,
        "client_us": 1e6 * own / events,
        "events_a_read": events / reads,
    }


if __name__ == "__main__":
    print(", ".join(f"{key} {value:.4g}" for key, value in measure_host(*map(int, sys.argv[1:3])).items()))
