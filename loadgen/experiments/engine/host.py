"""The host's cost: `python -P -m loadgen.experiments.engine.host [--beside CHECKOUT]`. Steps of the executor by part,
under a network that costs nothing; and streams of a virtual H100: tokens/s, relative step time, CPU a token, events a
read.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from loadgen.experiments.engine import host_steps
from loadgen.experiments.engine.setup import make_tokenizer, tiny
from loadgen.result_file import PROGRAM
from loadgen.turns import take_turns
from scheduler.serving_time.presets import PRESETS, VIRTUAL

PRESET = "h100-8b"
WARM = 20  # tokens of each stream before the window

PROMPT = "hello, host"  # a token a letter in its vocabulary

PATIENCE = 60.0  # seconds until an answer is given up

END = b"0\r\n\r\n"

ROOT = Path(__file__).parents[3]  # of the checkout, which need not be installed


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
    """Seconds, CPU of server, its event loop's thread and client, events, reads, and the first stream's events (one a
    step).
    """
    counts, reads = [one.events for one in streams], sum(one.reads for one in streams)
    loop = next(sum(one[1:]) for one in server.threads() if one.id == server.pid)
    times = time.perf_counter(), sum(server.cpu_times()[:2]), loop, time.process_time()
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


def measure_host(count: int = 256, tokens: int = 500, checkout: Path = ROOT) -> dict[str, float]:
    """Tokens/s, a step's relative time, microseconds of CPU a token, events a read; of another checkout's server."""
    with TemporaryDirectory() as folder:
        save_checkpoint(Path(folder))
        flags = [folder, "--device", f"{VIRTUAL}:{PRESET}", "--port", "0", "--max-num-seqs", str(count)]
        more = ["--max-num-batched-tokens", "2048", "--embedding-model", "none", "--log-level", "warning"]
        command = [*PROGRAM, "serve", *flags, *more]
        with run_server(command, Path(folder) / "log", PATIENCE, environ={"PYTHONPATH": str(checkout)}) as server:
            measuring = measure(psutil.Process(server.process.pid), urlsplit(server.url).port or 0, count, tokens)
            begin, end = uvloop.run(asyncio.wait_for(measuring, PATIENCE))
    seconds, cpu, loop, own, events, reads, steps = (end - begin).tolist()
    cost = PRESETS[PRESET].cost.decode(count, len(PROMPT) + int(begin[-1]), int(steps))
    return {
        "streams": count,
        "tokens_s": events / seconds,
        "step_ms": 1e3 * seconds / steps,
        "cost_ms": 1e3 * cost / steps,
        "server_us": 1e6 * cpu / events,
        "loop_us": 1e6 * loop / events,
        "client_us": 1e6 * own / events,
        "events_a_read": events / reads,
    }


def measure_steps(rows: Sequence[int], checkout: Path = ROOT) -> dict[str, dict[str, float]]:
    """Microseconds of a step's parts in the executor's thread, by rows and sampling."""
    program = [sys.executable, "-P", str(Path(host_steps.__file__)), *map(str, rows)]
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=10 * PATIENCE, env=environ)
    found: dict[str, dict[str, float]] = orjson.loads(done.stdout)
    return found


def compare(rows: Sequence[int], beside: Path | None, rounds: int) -> Iterator[str]:
    """Medians over rounds that alternate; a ratio to `beside` behind each."""
    sides = [ROOT] if beside is None else [ROOT, beside]
    found = defaultdict[tuple[str, str], dict[Path, list[float]]](lambda: defaultdict(list))
    for _, side in take_turns(sides, rounds):
        parts = {f"{name} rows, us a step": each for name, each in measure_steps(rows, side).items()}
        parts |= {f"{count} streams": measure_host(count, checkout=side) for count in rows}
        for name, figures in parts.items():
            for figure, value in figures.items():
                found[name, figure][side].append(value)
    for (name, figure), values in found.items():
        own, *others = (statistics.median(values[side]) for side in sides)
        ratio = "".join(f"{other:12.2f}{own / other if other else 0.0:8.2f}" for other in others)
        yield f"{name:28}{figure:14}{own:12.2f}{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m loadgen.experiments.engine.host")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"{'':42}{'this':>12}{'' if asked.beside is None else '      beside   ratio'}")
    for line in compare(asked.rows, asked.beside, asked.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
