"""Figures of batches and embeddings on a server of its own.

    python -P -m loadgen.experiments.batches.run smollm2-135m-instruct

- makespan: how long the server takes over mixed requests that come as a batch, that are submitted at once, and that are
  submitted at once and served first come, first served; and how far off the batch's expected end was
- interactive: how long requests take that come one by one, with and without a batch beside them
- embeddings: texts a second, and the gaps between tokens of running answers with and without embeddings beside them

The sides take turns, another first in each round, so that what else the machine does falls on all. What a side took is
told on stderr when it has ended, the report on stdout: ratios of all rounds together, and of each by itself. Three
rounds take eleven minutes on two cores: five of makespans, five of interactive requests, one of embeddings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import aiohttp

from loadgen.compare.own_server import run_server
from loadgen.experiments.batches.figures import Figures
from loadgen.program import PROGRAM

PATH = "/v1/completions"
POLL = 0.2
"""Seconds between two looks at a batch."""

WARM = 50
"""Requests before anything is measured."""

UNDER_WAY = ("validating", "in_progress", "finalizing")

ROWS, GAPS = 4, 160
"""Answers whose gaps between tokens are measured, and tokens of each."""

TEXTS, WORDS, ALONE = 16, 40, 5.0
"""Texts of a call for embeddings, words of each, and seconds for which they are asked for with no answers beside."""


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

    async def cancel_batches(self) -> None:
        """Break off what a run that was broken off has left under way."""
        async with self.session.get(f"{self.url}/v1/batches") as response:
            response.raise_for_status()
            left = [one["id"] for one in (await response.json())["data"] if one["status"] in UNDER_WAY]
        for batch in left:
            await self.post(f"/v1/batches/{batch}/cancel")

    async def watch(self, batch: str) -> AsyncIterator[Any]:
        """The states of a batch, until it has ended."""
        while True:
            async with self.session.get(f"{self.url}/v1/batches/{batch}") as response:
                state = await response.json()
            yield state
            if state["status"] not in UNDER_WAY:
                return
            await asyncio.sleep(POLL)

    async def ask_late(self, body: dict[str, Any], seconds: float) -> tuple[float, float]:
        """Seconds that a request takes that is sent so late, to its end and to its first token."""
        await asyncio.sleep(seconds)
        begin = time.monotonic()
        reply = await self.post(PATH, json=body)
        return time.monotonic() - begin, reply["metrics"]["time_to_first_token_ms"] / 1000

    async def stream_gaps(self, body: dict[str, Any]) -> list[float]:
        """Seconds between the events of an answer."""
        async with self.session.post(self.url + PATH, json={**body, "stream": True}) as response:
            response.raise_for_status()
            times = [time.monotonic() async for line in response.content if line.startswith(b"data: {")]
        return [after - before for before, after in pairwise(times)]


async def measure_makespan(server: Server, side: str, args: argparse.Namespace, figures: Figures) -> None:
    """Note the seconds from the first request's sending to the last answer."""
    bodies, begin = make_bodies(args.requests, seed=0), time.time()
    if side == "batch":
        await run_batch(server, bodies, figures)
    else:
        sent = [{**body, "priority": place} if side == "fcfs" else body for place, body in enumerate(bodies)]
        await asyncio.gather(*(server.ask_late(body, 0.0) for body in sent))
    figures.note("makespan", side, [time.time() - begin])


async def run_batch(server: Server, bodies: Sequence[dict[str, Any]], figures: Figures) -> None:
    """Wait for the end of a batch; note how far off its expected end was each time it was asked."""
    begin, told = time.time(), []
    async for state in server.watch(await server.begin_batch(bodies)):
        told.append(state["expected_completion_at"])
    if state["request_counts"]["completed"] < len(bodies):
        raise SystemExit(f"the batch has not come to its end: {state}")
    end = time.time()
    off = [abs(one - end) / (end - begin) for one in told if one is not None]
    if off:
        figures.note("expected end off, parts of the makespan", "batch", off)


async def measure_interactive(server: Server, side: str, args: argparse.Namespace, figures: Figures) -> None:
    """Note the seconds that each of some requests takes that come at a rate."""
    draw, at, calls, begun = random.Random(args.interactive), 0.0, [], asyncio.Event()
    for body in make_bodies(args.interactive, seed=1):
        at += draw.expovariate(args.rate)
        calls.append((body, at))
    async with asyncio.TaskGroup() as group:
        batches = None
        if side == "beside":
            batches = group.create_task(keep_batches(server, args.requests, begun))
            await begun.wait()
        taken = await asyncio.gather(*(server.ask_late(*call) for call in calls))
        if batches is not None:
            batches.cancel()
    figures.note("interactive latency", side, [latency for latency, _ in taken])
    figures.note("interactive first token", side, [first for _, first in taken])


async def keep_batches(server: Server, size: int, begun: asyncio.Event) -> None:
    """Have one batch after another under way until cancelled; `begun` is set when there is an answer."""
    while True:
        batch = await server.begin_batch(make_bodies(size, seed=size))
        try:
            async for state in server.watch(batch):
                if state["request_counts"]["completed"]:
                    begun.set()
        finally:
            await server.post(f"/v1/batches/{batch}/cancel")


async def measure_embeddings(server: Server, side: str, args: argparse.Namespace, figures: Figures) -> None:
    """Note the gaps of some answers and the texts a second that are embedded: one after the other, or together."""
    done = asyncio.Event()
    embedding = asyncio.create_task(embed_until(server, done)) if side == "beside" else None
    gaps = await asyncio.gather(*(server.stream_gaps(make_body(GAPS, random.Random(seed))) for seed in range(ROWS)))
    if embedding is None:
        embedding = asyncio.create_task(embed_until(server, done))
        await asyncio.sleep(ALONE)
    done.set()
    figures.note("token gap", side, [*chain(*gaps)])
    figures.note("embedded texts/s", side, [await embedding])


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


Measure: TypeAlias = Callable[[Server, str, argparse.Namespace, Figures], Awaitable[None]]

PARTS: Mapping[str, tuple[tuple[str, ...], Measure]] = MappingProxyType(
    {
        "makespan": (("batch", "at once", "fcfs"), measure_makespan),
        "interactive": (("alone", "beside"), measure_interactive),
        "embeddings": (("alone", "beside"), measure_embeddings),
    }
)


async def measure(url: str, args: argparse.Namespace, figures: Figures) -> None:
    """Measure all sides of some parts of a running server."""
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as session:
        server = Server(url, session)
        await server.cancel_batches()
        await asyncio.gather(*(server.ask_late(body, 0.0) for body in make_bodies(WARM, seed=2)))
        await server.post("/v1/embeddings", json={"input": "warm"})
        for number in range(args.rounds):
            for name in args.parts:
                sides, run = PARTS[name]
                turn = number % len(sides)
                for side in (*sides[turn:], *sides[:turn]):
                    await run(server, side, args, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure batches and embeddings on a server of its own.")
    parser.add_argument("model", help="as for `lengthwise serve`; flags that are none of these are for it too")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--requests", type=int, default=500, help="requests of a batch")
    parser.add_argument("--interactive", type=int, default=45, help="interactive requests of a round")
    parser.add_argument("--rate", type=float, default=1.0, help="of these, a second")
    parser.add_argument("--rounds", type=int, default=3)
    args, flags = parser.parse_known_args()
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        command = [*PROGRAM, "serve", args.model, "--port", "0", "--no-journal", *flags]
        with run_server(command, Path(folder) / "serve.log", ready_timeout=120) as server:
            try:
                asyncio.run(measure(server.url, args, figures))
            finally:  # also of what was broken off
                print(json.dumps(figures.report(), indent=1))


if __name__ == "__main__":
    main()
