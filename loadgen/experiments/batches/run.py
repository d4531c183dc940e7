"""Two figures of a running server: how long it takes over mixed requests that come as a batch and that are submitted at
once, and how long interactive requests take with and without a batch beside them.

    python -P -m loadgen.experiments.batches.run http://127.0.0.1:8000

The sides take turns, so that what else the machine does falls on both; ratios are of medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

PATH = "/v1/completions"
POLL = 0.2
"""Seconds between two looks at a batch."""


def mixed_bodies(count: int, seed: int) -> list[dict[str, object]]:
    """Bodies of requests whose answers have 4 to 128 tokens, 20 in the median: lognormal, as real answers are."""
    draw = random.Random(seed)
    lengths = [min(128, max(4, round(draw.lognormvariate(3.0, 0.8)))) for _ in range(count)]
    return [
        {"prompt": [draw.randrange(1, 200) for _ in range(16)], "max_tokens": n, "ignore_eos": True} for n in lengths
    ]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, **fields: Any) -> Any:
        async with self.session.post(self.url + path, **fields) as response:
            response.raise_for_status()
            return await response.json()

    async def begin_batch(self, bodies: Sequence[dict[str, object]]) -> str:
        """The id of a batch of these bodies."""
        form = aiohttp.FormData({"purpose": "batch"})
        lines = (
            json.dumps({"custom_id": str(place), "method": "POST", "url": PATH, "body": body})
            for place, body in enumerate(bodies)
        )
        form.add_field("file", "\n".join(lines).encode(), filename="in.jsonl")
        file = await self.post("/v1/files", data=form)
        wanted = {"input_file_id": file["id"], "endpoint": PATH, "completion_window": "24h"}
        return str((await self.post("/v1/batches", json=wanted))["id"])

    async def state(self, batch: str) -> Any:
        async with self.session.get(f"{self.url}/v1/batches/{batch}") as response:
            return await response.json()

    async def ask_late(self, body: dict[str, object], seconds: float) -> float:
        """Seconds that a request takes that is sent so late."""
        await asyncio.sleep(seconds)
        begin = time.monotonic()
        await self.post(PATH, json=body)
        return time.monotonic() - begin


async def run_batch(server: Server, bodies: Sequence[dict[str, object]]) -> float:
    """Seconds from the upload to the last answer."""
    begin = time.monotonic()
    batch = await server.begin_batch(bodies)
    while (state := await server.state(batch))["status"] != "completed":
        assert state["status"] in ("validating", "in_progress", "finalizing"), state
        await asyncio.sleep(POLL)
    assert state["request_counts"]["completed"] == len(bodies), state
    return time.monotonic() - begin


async def run_at_once(server: Server, bodies: Sequence[dict[str, object]]) -> float:
    """Seconds until all are answered that are submitted at once."""
    begin = time.monotonic()
    await asyncio.gather(*(server.ask_late(body, 0.0) for body in bodies))
    return time.monotonic() - begin


@asynccontextmanager
async def batch_beside(server: Server, size: int) -> AsyncIterator[None]:
    """A batch that is under way from before the first request to behind the last."""
    if not size:
        yield
        return
    batch = await server.begin_batch(mixed_bodies(size, seed=size))
    while (await server.state(batch))["request_counts"]["completed"] == 0:
        await asyncio.sleep(POLL)
    yield
    assert (await server.state(batch))["status"] == "in_progress", "the batch ended too early: make it larger"
    await server.post(f"/v1/batches/{batch}/cancel")


async def run_interactive(server: Server, count: int, rate: float, batch: int) -> list[float]:
    """Seconds that each of `count` requests takes that come at `rate` a second, beside a batch of this size."""
    draw, at = random.Random(count), 0.0
    bodies = mixed_bodies(count, seed=1)
    async with batch_beside(server, batch):
        calls = []
        for body in bodies:
            at += draw.expovariate(rate)
            calls.append(server.ask_late(body, at))
        return await asyncio.gather(*calls)


async def measure(args: argparse.Namespace) -> dict[str, object]:
    """Medians and ratios over the rounds."""
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as session:
        server = Server(args.url, session)
        bodies = mixed_bodies(args.requests, seed=0)
        await run_at_once(server, bodies[: args.requests // 10])  # warm
        spans: dict[str, list[float]] = {"batch": [], "at once": []}
        late: dict[str, list[float]] = {"alone": [], "beside": []}
        for _ in range(args.rounds):
            spans["at once"].append(await run_at_once(server, bodies))
            spans["batch"].append(await run_batch(server, bodies))
            late["alone"] += await run_interactive(server, args.interactive, args.rate, 0)
            late["beside"] += await run_interactive(server, args.interactive, args.rate, 100 * args.requests)
    medians = {side: statistics.median(seconds) for side, seconds in spans.items()}
    tails = {side: [float(np.quantile(seconds, q)) for q in (0.5, 0.99)] for side, seconds in late.items()}
    return {
        "makespan_s": spans,
        "makespan_ratio": medians["batch"] / medians["at once"],
        "latency_s_p50_p99": tails,
        "p50_ratio": tails["beside"][0] / tails["alone"][0],
        "p99_ratio": tails["beside"][1] / tails["alone"][1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure batches on a running server.")
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=500, help="requests of the batch")
    parser.add_argument("--interactive", type=int, default=200, help="interactive requests of a round")
    parser.add_argument("--rate", type=float, default=4.0, help="of these, a second")
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
