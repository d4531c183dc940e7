"""Figures of batches and embeddings on a server of its own, in one run.

    python -P -m loadgen.experiments.batches.run smollm2-135m-instruct

- makespan: how long the server takes over mixed requests that come as a batch, that are submitted at once, and that are
  submitted at once and served first come, first served; and how far off the batch's expected end was
- interactive: how long requests take that come one by one, with and without a batch beside them
- embeddings: texts a second, and the gaps between tokens of running answers with and without embeddings beside them

The sides take turns, so that what else the machine does falls on both; ratios are of medians, or of quantiles over
all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from loadgen.compare.own_server import run_server
from loadgen.program import PROGRAM

PATH = "/v1/completions"
POLL = 0.2
"""Seconds between two looks at a batch."""

ROWS, GAPS = 4, 160
"""Answers whose gaps between tokens are measured, and tokens of each."""

TEXTS, WORDS = 16, 40
"""Texts of a call for embeddings, and words of each."""


def make_bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """Bodies of requests whose answers have 4 to 128 tokens, 20 in the median: lognormal, as real answers are."""
    draw = random.Random(seed)
    lengths = [min(128, max(4, round(draw.lognormvariate(3.0, 0.8)))) for _ in range(count)]
    return [make_body(n, draw) for n in lengths]


def make_body(tokens: int, draw: random.Random) -> dict[str, Any]:
    """Body of a request whose answer has so many tokens."""
    return {"prompt": [draw.randrange(1, 200) for _ in range(16)], "max_tokens": tokens, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, **fields: Any) -> Any:
        async with self.session.post(self.url + path, **fields) as response:
            response.raise_for_status()
            return await response.json()

    async def begin_batch(self, bodies: Sequence[dict[str, Any]]) -> str:
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

    async def ask_late(self, body: dict[str, Any], seconds: float) -> float:
        """Seconds that a request takes that is sent so late."""
        await asyncio.sleep(seconds)
        begin = time.monotonic()
        await self.post(PATH, json=body)
        return time.monotonic() - begin

    async def stream_gaps(self, body: dict[str, Any]) -> list[float]:
        """Seconds between the events of an answer."""
        async with self.session.post(self.url + PATH, json={**body, "stream": True}) as response:
            response.raise_for_status()
            times = [time.monotonic() async for line in response.content if line.startswith(b"data: {")]
        return [after - before for before, after in pairwise(times)]


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured, in seconds if nothing else is said, each side over all rounds."""

    makespan: dict[str, list[float]] = field(default_factory=lambda: {"batch": [], "at once": [], "fcfs": []})
    end_errors: list[float] = field(default_factory=list)
    """How far off the expected end of a batch was each time it was asked, as a part of its makespan."""
    latency: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "beside": []})
    gaps: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "beside": []})
    texts_per_second: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "beside": []})

    def report(self) -> dict[str, object]:
        """Medians, quantiles and their ratios."""
        spans = {side: statistics.median(seconds) for side, seconds in self.makespan.items()}
        return {
            "makespan_s": self.makespan,
            "makespan_batch_over": {side: round(spans["batch"] / spans[side], 3) for side in ("at once", "fcfs")},
            "expected_end_off_by_part_of_makespan": find_quantiles(self.end_errors, 0.5, 0.9),
            "interactive_latency_s": {side: find_quantiles(found, 0.5, 0.99) for side, found in self.latency.items()},
            "interactive_beside_over_alone": find_ratios(self.latency, 0.5, 0.99),
            "embedded_texts_per_s": {side: statistics.median(found) for side, found in self.texts_per_second.items()},
            "token_gap_s": {side: find_quantiles(found, 0.9, 0.99) for side, found in self.gaps.items()},
            "token_gap_beside_over_alone": find_ratios(self.gaps, 0.9, 0.99),
        }


def find_quantiles(values: Sequence[float], *shares: float) -> dict[str, float]:
    """Quantiles of values, by name: p99 is that of 0.99."""
    return {f"p{share * 100:g}": float(f"{np.quantile(values, share):.4g}") for share in shares}


def find_ratios(sides: dict[str, list[float]], *shares: float) -> dict[str, float]:
    """Quantiles of what was measured beside something over those of what was measured alone."""
    alone, beside = find_quantiles(sides["alone"], *shares), find_quantiles(sides["beside"], *shares)
    return {name: round(beside[name] / alone[name], 3) for name in alone}


async def run_batch(server: Server, bodies: Sequence[dict[str, Any]], figures: Figures) -> None:
    """Note the seconds from the upload to the last answer."""
    begin, told = time.time(), []
    batch = await server.begin_batch(bodies)
    while (state := await server.state(batch))["status"] != "completed":
        assert state["status"] in ("validating", "in_progress", "finalizing"), state
        told.append(state["expected_completion_at"])
        await asyncio.sleep(POLL)
    assert state["request_counts"]["completed"] == len(bodies), state
    end = time.time()
    figures.makespan["batch"].append(end - begin)
    figures.end_errors.extend(abs(one - end) / (end - begin) for one in told if one is not None)


async def run_at_once(server: Server, bodies: Iterable[dict[str, Any]]) -> float:
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
    batch = await server.begin_batch(make_bodies(size, seed=size))
    while (await server.state(batch))["request_counts"]["completed"] == 0:
        await asyncio.sleep(POLL)
    yield
    assert (await server.state(batch))["status"] == "in_progress", "the batch ended too early: make it larger"
    await server.post(f"/v1/batches/{batch}/cancel")


async def run_interactive(server: Server, count: int, rate: float, batch: int) -> list[float]:
    """Seconds that each of `count` requests takes that come at `rate` a second, beside a batch of this size."""
    draw, at = random.Random(count), 0.0
    bodies = make_bodies(count, seed=1)
    async with batch_beside(server, batch):
        calls = []
        for body in bodies:
            at += draw.expovariate(rate)
            calls.append(server.ask_late(body, at))
        return await asyncio.gather(*calls)


async def embed_until(server: Server, done: asyncio.Event) -> float:
    """Texts a second that are embedded until an event is set, two calls at a time."""
    begin, count = time.monotonic(), 0
    texts = [" ".join(f"word{place}{number}" for number in range(WORDS)) for place in range(TEXTS)]

    async def keep_asking() -> None:
        nonlocal count
        while not done.is_set():
            await server.post("/v1/embeddings", json={"input": texts})
            count += len(texts)

    await asyncio.gather(keep_asking(), keep_asking())
    return count / (time.monotonic() - begin)


async def run_gaps(server: Server, figures: Figures) -> None:
    """Note the gaps of some answers, alone and beside embeddings, and the rate of these, alone and beside answers."""
    bodies = [make_body(GAPS, random.Random(seed)) for seed in range(ROWS)]
    for side in ("alone", "beside"):
        done = asyncio.Event()
        embedding = asyncio.create_task(embed_until(server, done)) if side == "beside" else None
        gaps = await asyncio.gather(*map(server.stream_gaps, bodies))
        done.set()
        figures.gaps[side] += [gap for one in gaps for gap in one]
        if embedding is not None:
            figures.texts_per_second[side].append(await embedding)
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(5.0, done.set)
    figures.texts_per_second["alone"].append(await embed_until(server, done))


async def measure(url: str, args: argparse.Namespace) -> dict[str, object]:
    """All figures of a running server."""
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as session:
        server, figures = Server(url, session), Figures()
        bodies = make_bodies(args.requests, seed=0)
        in_order = [{**body, "priority": place} for place, body in enumerate(bodies)]
        await run_at_once(server, bodies[: args.requests // 10])  # warm
        await server.post("/v1/embeddings", json={"input": "warm"})
        for _ in range(args.rounds):
            figures.makespan["at once"].append(await run_at_once(server, bodies))
            await run_batch(server, bodies, figures)
            figures.makespan["fcfs"].append(await run_at_once(server, in_order))
            figures.latency["alone"] += await run_interactive(server, args.interactive, args.rate, 0)
            figures.latency["beside"] += await run_interactive(server, args.interactive, args.rate, args.beside)
            await run_gaps(server, figures)
        return figures.report()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure batches and embeddings on a server of its own.")
    parser.add_argument("model", help="as for `lengthwise serve`; flags that are none of these are for it too")
    parser.add_argument("--requests", type=int, default=500, help="requests of the batch")
    parser.add_argument("--beside", type=int, default=2000, help="requests of the batch beside interactive ones")
    parser.add_argument("--interactive", type=int, default=45, help="interactive requests of a round")
    parser.add_argument("--rate", type=float, default=1.0, help="of these, a second")
    parser.add_argument("--rounds", type=int, default=2)
    args, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [*PROGRAM, "serve", args.model, "--port", "0", "--no-journal", *flags]
        with run_server(command, Path(folder) / "serve.log", ready_timeout=120) as server:
            print(json.dumps(asyncio.run(measure(server.url, args)), indent=1))


if __name__ == "__main__":
    main()
