"""Time what others notice of a busy server. For a machine with nothing beside it:

    python -m tests.tools.gaps streams     the lag of the event loop while 1,000 streams run: 99 % of looks <= 20 ms
    python -m tests.tools.gaps bombs       the gaps between tokens while four others send grammars that are bombs, by
                                            those beside nothing: <= 2 at the 99th percentile; and by those while the
                                            four send ordinary calls, calls with answers as short as those of most
                                            bombs, and calls that are refused

Starts `lengthwise serve` with a tiny model, or with --model, beside whose steps a bomb is short. Exit code 1 where a
goal is missed.
"""

import argparse
import asyncio
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext, suppress
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson
import psutil

from scheduler.clock import background
from tests import tiny
from tests.engine.sampling.bombs import BOMBS
from tests.live_server import serve
from tests.test_grammar_bombs import fields

STREAMS, NEIGHBOURS, THROWERS = 1000, 8, 4
LAG = 0.02
SELDOM = 2**14
"""Bytes that come before the client of a stream is woken: it has no share in the time of the cores that is measured."""
ROUNDS = 3
"""Times that the neighbours run beside nothing and beside each kind of calls, in turns."""
LONG = {"prompt": [3, 4, 5], "max_tokens": 900, "ignore_eos": True, "temperature": 0, "stream": True}


class Counter(Protocol):
    """A number that processes share."""

    value: int


class Discard(asyncio.Protocol):
    """A client that throws away what it is sent, and asks again when that has ended."""

    def __init__(self, request: bytes, again: Callable[[], object]) -> None:
        self._request, self._again = request, again

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, SELDOM)
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._again()


async def measure_lag(url: str, seconds: float) -> bool:
    """Whether nearly all looks of the loop came in time while all streams ran."""
    host, port = url.removeprefix("http://").split(":")
    body = orjson.dumps(LONG)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()

    def ask() -> None:
        task = loop.create_task(loop.create_connection(lambda: Discard(request, ask), host, int(port)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as session:
        for _ in range(STREAMS):
            ask()
        while (await read(session, "vllm:num_requests_running"))[""] < STREAMS:
            await asyncio.sleep(0.5)
        names = ("lengthwise:event_loop_lag_seconds_bucket", "vllm:generation_tokens_total")
        before, made = [await read(session, name) for name in names]
        await asyncio.sleep(seconds)
        after, all_made = [await read(session, name) for name in names]
    looks = {le: after[le] - before[le] for le in after}
    print(f"{(all_made[''] - made['']) / seconds:.0f} tokens/s")
    share = looks[str(LAG)] / looks["+Inf"]
    print(f"{looks['+Inf']:.0f} looks at the loop, {share:.2%} came within {LAG * 1000:.0f} ms; all: {looks}")
    return share >= 0.99


async def read(session: aiohttp.ClientSession, name: str) -> dict[str, float]:
    """A metric by its bound `le`, empty where it has none."""
    async with session.get("/metrics") as response:
        lines = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", await response.text(), re.MULTILINE)
    bounds = (re.search(r'le="([^"]+)"', labels) for labels, _ in lines)
    return {"" if le is None else le[1]: float(value) for le, (_, value) in zip(bounds, lines, strict=True)}


async def stream(session: aiohttp.ClientSession, gaps: list[float]) -> None:
    """Read one stream after another, and note the seconds between what comes."""
    while True:
        async with session.post("/v1/completions", json=LONG) as response:
            latest = None
            async for _ in response.content.iter_any():
                now = time.perf_counter()
                if latest is not None:
                    gaps.append(now - latest)
                latest = now


def throw(url: str, bodies: Sequence[bytes], answered: Counter) -> None:
    """Send one call after another, several at a time, until the process is killed."""
    calls = cycle(bodies)

    async def throw_one_by_one(session: aiohttp.ClientSession) -> None:
        for body in calls:
            with suppress(aiohttp.ClientError):
                async with session.post("/v1/chat/completions", data=body) as response:
                    await response.read()
            answered.value += 1

    async def throw_all() -> None:
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
            await asyncio.gather(*(throw_one_by_one(session) for _ in range(THROWERS)))

    asyncio.run(throw_all())


class Throwers:
    """Clients in a process that is suspended at first: readers share no event loop with it."""

    def __init__(self, url: str, bodies: Sequence[bytes]) -> None:
        context = get_context("spawn")
        self._answered: Counter = context.Value("i")
        self._process = context.Process(target=throw, args=(url, bodies, self._answered), daemon=True)
        self._process.start()
        self._control = psutil.Process(self._process.pid)
        while not self._answered.value:
            time.sleep(0.1)
        self._control.suspend()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    @contextmanager
    def throwing(self) -> Iterator[Callable[[], int]]:
        """Throws until the context is left; yields how many calls have been answered since."""
        before = self._answered.value
        self._control.resume()
        try:
            yield lambda: self._answered.value - before
        finally:
            self._control.suspend()


async def measure_gaps(url: str, seconds: float) -> bool:
    """Whether the neighbours' longest gaps are not much longer with bombs than without."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
    calls = {"ordinary calls": [asked], "short calls": [{**asked, "max_tokens": 2}]}
    calls["refused calls"] = [{**asked, "max_tokens": -1}]
    calls["bombs"] = [{**asked, **fields(bomb)} for bomb in BOMBS.values()]
    throwers = {name: Throwers(url, [orjson.dumps(body) for body in bodies]) for name, bodies in calls.items()}
    with ExitStack() as stack:
        for thrower in throwers.values():
            stack.callback(thrower.close)
        tails = await measure_tails(url, seconds, throwers)
    bombs = tails.pop("bombs")
    for name, tail in tails.items():
        print(f"beside bombs by beside {name}: {bombs / tail:.2f}")
    return bombs <= 2 * tails["nothing"]


async def measure_tails(url: str, seconds: float, throwers: Mapping[str, Throwers]) -> dict[str, float]:
    """The 99th percentile of the neighbours' gaps in seconds, the median of some rounds, beside each of the throwers
    and beside nothing.
    """
    tails: dict[str, list[float]] = {name: [] for name in ("nothing", *throwers)}
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(120)) as session:
        gaps: list[float] = []
        async with AsyncExitStack() as stack:
            for _ in range(NEIGHBOURS):
                await stack.enter_async_context(background(stream(session, gaps), "neighbour"))
            for name in (*tails,) * ROUNDS:
                with throwers[name].throwing() if name in throwers else nullcontext(lambda: 0) as count_answered:
                    await asyncio.sleep(1)
                    gaps.clear()
                    await asyncio.sleep(seconds)
                    tails[name].append(statistics.quantiles(gaps, n=100)[-1])
                    tail = f"{len(gaps)} gaps, 99th percentile {tails[name][-1] * 1000:.1f} ms"
                    print(f"beside {name}, {count_answered()} answered: {tail}", flush=True)
    return {name: statistics.median(rounds) for name, rounds in tails.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "bombs"])
    parser.add_argument("--seconds", type=float, default=None, help="how long (default: 100, or 15 times 20)")
    parser.add_argument("--model", type=Path, default=None, help="folder of a model (default: a tiny one)")
    options = parser.parse_args()
    measure, seconds, slots = (measure_lag, 100.0, STREAMS) if options.what == "streams" else (measure_gaps, 20.0, 16)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or tiny.build(Path(folder) / "tiny", context=1024)
        with serve(model, "--max-num-seqs", str(slots), "--kv-cache-memory", "1") as url:
            return 0 if asyncio.run(measure(url, options.seconds or seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
