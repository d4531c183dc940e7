"""The host's cost: `python -P -m loadgen.experiments.engine.host [--beside CHECKOUT]`. Steps of the executor by part,
under a network that costs nothing; and streams of a virtual H100: tokens/s, relative step time, CPU a token."""

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

import msgspec
import numpy as np
import psutil
import uvloop
from numpy.typing import NDArray
from safetensors.numpy import save_file

from loadgen.compare.server import run_server
from loadgen.experiments.engine import host_steps
from loadgen.experiments.engine.setup import make_tokenizer, tiny
from loadgen.experiments.options import read_count
from loadgen.result_file import PROGRAM
from loadgen.turns import take_turns
from scheduler.serving_time.presets import PRESETS, VIRTUAL

PRESET = "h100-8b"
WARM = 20  # tokens of each stream before the window

PROMPT = "hello, host"  # a token a letter in its vocabulary

STARTING = 180.0  # seconds until a server of 16 GB is given up

PATIENCE = 60.0  # seconds until an answer is given up

END = b"\r\n0\r\n\r\n"

ROOT = Path(__file__).parents[3]  # of the checkout, which need not be installed


class Stream(asyncio.Protocol):
    def __init__(self, ended: asyncio.Event) -> None:
        """`ended`: of any."""
        self.events = 0
        self.first: float | None = None  # time.perf_counter
        self.warm, self._ended = asyncio.Event(), ended
        self._tail = b""  # the end may be a read of its own, and headers may end like it

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: ")
        if events and self.first is None:
            self.first = time.perf_counter()
        self.events += events
        self._tail = (self._tail + data)[-len(END) :]
        if self.events >= WARM:
            self.warm.set()
        if self._tail == END:
            self._ended.set()


def take_sample(server: psutil.Process, streams: Sequence[Stream]) -> NDArray[np.float64]:
    """Seconds, CPU of server and its event loop's thread, events, and the first stream's events (one a step)."""
    counts = [one.events for one in streams]
    loop = next(sum(one[1:]) for one in server.threads() if one.id == server.pid)
    return np.array([time.perf_counter(), sum(server.cpu_times()[:2]), loop, sum(counts), max(counts)])


async def measure(server: psutil.Process, port: int, count: int, tokens: int, prompt: str) -> dict[str, float]:
    """A burst's median first token, and what its streams cost from WARM tokens on until the first ends."""
    asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True}
    body = msgspec.json.encode(asked | {"ignore_eos": True, "temperature": 0})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    connections = [await loop.create_connection(lambda: Stream(ended), "127.0.0.1", port) for _ in range(count)]
    sent = time.perf_counter()
    for transport, _ in connections:  # together, so that prompts are read together
        transport.write(head.encode() + body)
    streams = [stream for _, stream in connections]
    for one in streams:
        await one.warm.wait()
    begin = take_sample(server, streams)
    await ended.wait()
    end = take_sample(server, streams)
    for transport, _ in connections:
        transport.abort()
    await asyncio.sleep(0)  # to close them
    seconds, cpu, loop_cpu, events, steps = (end - begin).tolist()
    if not steps:
        raise RuntimeError(f"{tokens} tokens are too few for a window")
    return {
        "streams": count,
        "first_ms": 1e3 * statistics.median((one.first or sent) - sent for one in streams),
        "tokens_s": events / seconds,
        "step_ms": 1e3 * seconds / steps,
        "server_us": 1e6 * cpu / events,
        "loop_us": 1e6 * loop_cpu / events,
        "warm": begin[-1],
        "steps": steps,
    }


def serve_streams(
    flags: Sequence[str], counts: Sequence[int], tokens: int, prompt: str = PROMPT, checkout: Path = ROOT
) -> list[dict[str, float]]:
    common = ["--port", "0", "--max-num-seqs", str(max(counts)), "--embedding-model", "none", "--log-level", "warning"]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with run_server([*PROGRAM, "serve", *flags, *common], log, STARTING, PYTHONPATH=str(checkout)) as server:
            process, port = psutil.Process(server.process.pid), urlsplit(server.url).port or 0
            bursts = (measure(process, port, count, tokens, prompt) for count in counts)
            return [uvloop.run(asyncio.wait_for(burst, PATIENCE)) for burst in bursts]


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    tokenizer = make_tokenizer(vocabulary)
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)


def save_checkpoint(folder: Path) -> None:
    """A model whose tokenizer alone is used."""
    config = tiny(1)
    save_tokenizer(folder, config.vocab_size)
    config.save_pretrained(folder)
    save_file({"unread": np.zeros(1)}, folder / "model.safetensors")


def measure_host(count: int = 256, tokens: int = 500, checkout: Path = ROOT) -> dict[str, float]:
    """Streams of a virtual device, and by its cost a step's milliseconds."""
    with TemporaryDirectory() as folder:
        save_checkpoint(Path(folder))
        flags = [folder, "--device", f"{VIRTUAL}:{PRESET}", "--max-num-batched-tokens", "2048"]
        (found,) = serve_streams(flags, [count], tokens, checkout=checkout)
    warm, steps = int(found.pop("warm")), int(found.pop("steps"))
    return found | {"cost_ms": 1e3 * PRESETS[PRESET].cost.decode(count, len(PROMPT) + warm, steps) / steps}


def measure_steps(rows: Sequence[int], checkout: Path = ROOT) -> dict[str, dict[str, float]]:
    """Microseconds of a step's parts in the executor's thread, by rows and sampling."""
    program = [sys.executable, "-P", str(Path(host_steps.__file__)), *map(str, rows)]
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=10 * PATIENCE, env=environ)
    return msgspec.json.decode(done.stdout, type=dict[str, dict[str, float]])


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
    parser.add_argument("--rows", type=read_count(1), nargs="+", default=[1, 64, 256])
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=read_count(1), default=3)
    asked = parser.parse_args()
    print(f"{'':42}{'this':>12}{'' if asked.beside is None else '      beside   ratio'}")
    for line in compare(asked.rows, asked.beside, asked.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
