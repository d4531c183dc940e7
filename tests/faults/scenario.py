"""A server with two executors, thirty calls to it all at once, and what must be true of it afterwards."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import orjson

from server.composition.app import open_service
from server.config import ServeConfig
from server.http.service import Service
from tests import live_server
from tests.faults.points import ROWS

Answer: TypeAlias = tuple[tuple[str, str | None], ...] | None
"""Text and reason of the end of each choice; None where the call ended with an error, or its client left."""

UP = {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": UP}}
GAUGES = (
    *("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "lengthwise:executor_rows"),
    *("lengthwise:staged_rows", "lengthwise:host_memory_rows", "lengthwise:host_memory_bytes"),
    *("lengthwise:predicted_load_seconds", "lengthwise:waiting_prompt_tokens"),
)
"""Gauges that are 0 while nothing is under way."""


@dataclass(frozen=True)
class Call:
    """One request, and when its client leaves."""

    path: str
    body: dict[str, Any]
    leaves: bool = False
    """Whether its client closes the connection after the first event."""


def _completion(length: int, max_tokens: int, **fields: Any) -> Call:
    prompt = [3 + (7 * max_tokens + 3 * place) % 300 for place in range(length)]
    return Call("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields})


def _chat(text: str, **fields: Any) -> Call:
    messages = [{"role": "user", "content": text}]
    return Call("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0, **fields})


CALLS: Sequence[Call] = (
    *(_completion(4 + 3 * n, 6 + n, ignore_eos=True, stream=n % 2 == 0) for n in range(10)),
    *(_completion(90 - n, 5 + n, ignore_eos=True) for n in range(3)),
    *(_chat("a" * n, seed=n, temperature=1.0, stream=n % 2 == 0) for n in range(1, 5)),
    *(_completion(8, 7, seed=n, temperature=1.0, n=2) for n in range(2)),
    *(_chat(f"look {n}", tools=[TOOL], tool_choice="required") for n in range(4)),
    *(replace(_completion(6 + n, 40, ignore_eos=True, stream=True), leaves=True) for n in range(3)),
    *(_completion(9 + n, 8, ignore_eos=True, priority=-1) for n in range(4)),
)
"""Those of better priority come last, and take slots of those that run."""
assert len(CALLS) == 30


def config_of(folder: Path, strategy: str, journal: Path) -> ServeConfig:
    given = {"device": "cpu", "executors": 2, "dtype": "float32", "max_num_batched_tokens": 64, "slice_length": 4}
    own = {"max_num_seqs": ROWS, "kv_cache_memory": 0.001, "strategy": strategy, "journal": journal}
    return live_server.config_of(folder, **given | own)


@dataclass(frozen=True)
class Server:
    """A server that listens in this process, and a client of it."""

    service: Service
    url: str
    session: aiohttp.ClientSession

    async def ask(self, call: Call) -> Answer:
        """The answer to one call."""
        try:
            async with self.session.post(self.url + call.path, json=call.body) as response:
                if response.status != 200:
                    return None
                if call.leaves:
                    await response.content.readuntil(b"\n\n")
                    response.close()
                    return None
                raw = await response.read()
        except aiohttp.ClientError:
            return None
        return _streamed(raw) if call.body.get("stream") else _whole(orjson.loads(raw))

    async def ask_all(self) -> list[Answer]:
        """The answers to all calls, sent at once in their order."""
        return list(await asyncio.gather(*(self.ask(call) for call in CALLS)))

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def gauges(self) -> dict[str, float]:
        """Gauges that are not 0 though they should be."""
        _, text = await self.get("/metrics")
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(GAUGES)]
        return {name: float(value) for name, _, value in lines if float(value)}

    async def sum_of(self, name: str) -> float:
        """A metric, over all its labels."""
        _, text = await self.get("/metrics")
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


def _whole(reply: Any) -> Answer:
    return tuple((_said(choice.get("message") or choice), choice["finish_reason"]) for choice in reply["choices"])


def _said(part: dict[str, Any]) -> str:
    calls = [call["function"] for call in part.get("tool_calls") or ()]
    return str(part.get("text") or part.get("content") or [(call["name"], call["arguments"]) for call in calls])


def _streamed(raw: bytes) -> Answer:
    """One choice, or None for a stream that broke off or ended with an error."""
    frames = [line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: ")]
    if not frames or frames.pop() != b"[DONE]":
        return None
    events = [orjson.loads(frame) for frame in frames]
    if any("error" in event for event in events):
        return None
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join((one.get("delta") or one).get("content") or one.get("text") or "" for one in choices)
    return ((text or "[]", choices[-1]["finish_reason"]),)


@asynccontextmanager
async def serve(config: ServeConfig) -> AsyncIterator[Server]:
    async with live_server.listening(open_service(config)) as (service, url):
        timeout = aiohttp.ClientTimeout(300)  # of what hangs; other programs may have the machine for a while
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Server(service, url, session)


def what_is_open() -> tuple[list[str], int]:
    """Names of this process's threads, and its number of descriptors; without the threads of the test's own loop and
    the one that ends slow templates, which ends by itself."""
    threads = (thread.name for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "deadline")))
    return sorted(threads), len(os.listdir("/proc/self/fd"))
