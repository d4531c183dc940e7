"""Keep a server busy for some time with calls of every kind, many of which are broken off, and see what stays:

    python -m tests.tools.soak --seconds 1800

Starts `lengthwise serve` with a tiny model, or with --model. Exit code 1 where anything has stayed, memory has grown by
more than 2 % in the second half, or a call that was not broken off got no whole answer.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import psutil

from tests import tiny
from tests.faults.scenario import CALLS, GAUGES, Call
from tests.live_server import serve

CLIENTS = 48
"""At the same time, on 16 slots: two of three wait."""
SLOTS = ("--max-num-seqs", "8", "--executors", "2", "--kv-cache-memory", "0.01")
INTERVAL = 2.0
"""Seconds between two samples."""
GROWTH = 1.02
LINGER = 0.2
"""Seconds at most after which a client leaves."""


class Leave(Exception):
    """A client leaves of its own will."""


@dataclass
class Soak:
    """Clients of one server, and what they saw."""

    url: str
    server: psutil.Process
    seed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """Calls by how they ended: `whole`, `left`, or what was wrong."""
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Seconds since the start, resident bytes, descriptors and threads."""

    async def run(self, enough: Callable[[Soak], bool], *, leaving: float) -> dict[str, float]:
        """Call until it is enough; returns the gauges that are not 0 when all has been over for a while.

        leaving  part of the calls that are broken off
        """
        begin = time.monotonic()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as session:
            clients = [asyncio.create_task(self._client(session, number, leaving)) for number in range(CLIENTS)]
            while not enough(self):
                self._sample(time.monotonic() - begin)
                done, _ = await asyncio.wait(clients, timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                for client in done:
                    client.result()
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            return await self._left_over(session)

    def _sample(self, now: float) -> None:
        seen = self.server.memory_info().rss, self.server.num_fds(), self.server.num_threads()
        self.samples.append((now, *seen))

    async def _client(self, session: aiohttp.ClientSession, number: int, leaving: float) -> None:
        choice = random.Random(f"{self.seed} {number}")
        while True:
            call = choice.choice(CALLS)
            leaves = choice.random() < leaving
            try:
                self.ended[await self._call(session, call, choice, leaves=leaves)] += 1
            except Leave:
                self.ended["left"] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self.ended[f"{type(error).__name__}: {error}"] += 1

    async def _call(self, session: aiohttp.ClientSession, call: Call, choice: random.Random, *, leaves: bool) -> str:
        """One call. One that is to be broken off is so at any phase: while it is sent, waits, is read or decoded."""
        phase = choice.choice(["body", "wait", "stream", "reset"]) if leaves else None
        body = {**call.body, "stream": True} if phase in ("stream", "reset") else call.body
        if phase == "body":
            return await self._send_half(session, call, orjson.dumps(body))
        try:
            async with asyncio.timeout(choice.uniform(0, LINGER) if phase == "wait" else None):
                async with session.post(self.url + call.path, json=body) as response:
                    if phase in ("stream", "reset"):
                        for _ in range(choice.randrange(1, 8)):
                            await response.content.readline()
                        self._hang_up(response, abruptly=phase == "reset")
                        return "left"
                    raw = await response.read()
                    whole = response.status == 200 and b'"error":' not in raw
                    return "whole" if whole else f"{response.status} {raw[:200]!r}"
        except TimeoutError:
            if phase == "wait":
                return "left"
            raise

    def _hang_up(self, response: aiohttp.ClientResponse, *, abruptly: bool) -> None:
        connection = response.connection
        if abruptly and connection is not None and connection.transport is not None:
            connection.transport.abort()
        response.close()

    async def _send_half(self, session: aiohttp.ClientSession, call: Call, body: bytes) -> str:
        async def halves() -> object:
            yield body[: len(body) // 2]
            raise Leave

        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        with suppress(aiohttp.ClientError, Leave):
            async with session.post(self.url + call.path, data=halves(), headers=headers):
                pass
        return "left"

    async def _left_over(self, session: aiohttp.ClientSession) -> dict[str, float]:
        for _ in range(200):
            async with session.get(f"{self.url}/metrics") as response:
                lines = [line.rpartition(" ") for line in (await response.text()).splitlines()]
            left = {name: float(value) for name, _, value in lines if name.startswith(GAUGES) and float(value)}
            if not left:
                break
        return left

    def grown(self) -> float:
        """Greatest resident memory in the last quarter of the samples, by that in the second one."""
        quarter = len(self.samples) // 4
        sizes = [size for _, size, _, _ in self.samples]
        return max(sizes[-quarter:]) / max(sizes[quarter : 2 * quarter])

    def faults(self) -> dict[str, int]:
        """Calls that ended as none should."""
        return {end: count for end, count in self.ended.items() if end not in ("whole", "left")}


def process_of(url: str) -> psutil.Process:
    """The server among this process's children."""
    port = int(url.rpartition(":")[2])
    listening = (
        child
        for child in psutil.Process().children()
        if any(one.laddr.port == port for one in child.net_connections() if one.status == psutil.CONN_LISTEN)
    )
    return next(listening)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (default: %(default)s)")
    parser.add_argument("--leaving", type=float, default=0.3, help="part of the calls that are broken off")
    parser.add_argument("--model", type=Path, default=None, help="folder of a model (default: a tiny one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or tiny.build(Path(folder) / "tiny", context=1024)
        with serve(model, *SLOTS, "--journal", str(Path(folder) / "journal.sqlite3")) as url:
            soak, begin = Soak(url, process_of(url)), time.monotonic()
            left = asyncio.run(soak.run(lambda _: time.monotonic() - begin >= options.seconds, leaving=options.leaving))
    for seconds, size, descriptors, threads in soak.samples[:: max(1, len(soak.samples) // 12)]:
        print(f"{seconds:7.0f} s  {size / 2**20:7.1f} MiB  {descriptors:4d} descriptors  {threads:3d} threads")
    print(f"calls: {dict(soak.ended)}\nleft over: {left}\nmemory, last quarter by second: {soak.grown():.4f}")
    return 1 if left or soak.faults() or soak.grown() > GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
