"""Questions to backends: whether one that failed is there again, and how much room it has where it tells."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
import msgspec

from engine.messages import ExecutorHealth
from scheduler.dispatcher import Dispatcher
from server.gateway.backend import ROOM, Backend
from server.http.proxy import passed_headers

PERIOD = 0.5
"""Seconds between two questions to a backend that failed."""

PATIENCE = aiohttp.ClientTimeout(5.0)


PAGES = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
"""The labels in which vLLM's GET /metrics tells of the pages for K and V of each of its engines."""


class _Props(msgspec.Struct, frozen=True):
    """The part of llama.cpp's answer to GET /props that is read."""

    total_slots: int


async def watch_backends(backends: Sequence[Backend], dispatcher: Dispatcher, session: aiohttp.ClientSession) -> None:
    """Ask each backend for its room, and those that fail again and again until they answer; never returns."""
    await asyncio.gather(*(_learn_room(one, session) for one in backends))
    while True:
        await asyncio.sleep(PERIOD)
        failed = {worker.index for worker in dispatcher.workers if worker.fault is not None}
        await asyncio.gather(*(_try_again(one, session) for one in backends if one.index in failed))


async def _try_again(backend: Backend, session: aiohttp.ClientSession) -> None:
    if await _ask(f"{backend.url}/models", backend, session) is not None:
        await _learn_room(backend, session)
        backend.deliver(ExecutorHealth(backend.index, None))


async def _learn_room(backend: Backend, session: aiohttp.ClientSession) -> None:
    root = backend.url.removesuffix("/v1")
    if (told := await _ask(f"{root}/props", backend, session)) is not None:
        with suppress(msgspec.MsgspecError):  # it is no llama.cpp
            backend.slots.learn(msgspec.json.decode(told, type=_Props).total_slots)
    pages = PAGES.findall(await _ask(f"{root}/metrics", backend, session) or b"")
    backend.room = sum(_label(b"num_gpu_blocks", one) * _label(b"block_size", one) for one in pages) or ROOM


def _label(name: bytes, labels: bytes) -> int:
    """The number that a label has; 0 where it has none."""
    found = re.search(rb'\b%b="(\d+)"' % name, labels)
    return int(found[1]) if found else 0


async def _ask(url: str, backend: Backend, session: aiohttp.ClientSession) -> bytes | None:
    """The body of a good answer; None for any other."""
    headers = passed_headers({}, backend.key)
    try:
        async with session.get(url, headers=headers, timeout=PATIENCE) as answer:
            body = await answer.read()
            return body if answer.status < 500 and (answer.status == 200 or url.endswith("/models")) else None
    except (aiohttp.ClientError, TimeoutError):
        return None
