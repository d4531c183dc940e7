"""Questions to backends: whether one that failed is there again, and how many slots it has where it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from engine.messages import ExecutorHealth
from scheduler.dispatcher import Dispatcher
from server.gateway.backend import Backend
from server.http.proxy import passed_headers

PERIOD = 0.5
"""Seconds between two questions to a backend that failed."""

PATIENCE = aiohttp.ClientTimeout(5.0)


class _Props(msgspec.Struct, frozen=True):
    """The part of llama.cpp's answer to GET /props that is read."""

    total_slots: int


async def watch_backends(backends: Sequence[Backend], dispatcher: Dispatcher, session: aiohttp.ClientSession) -> None:
    """Ask each backend for its slots, and those that fail again and again until they answer; never returns."""
    await asyncio.gather(*(_learn_slots(one, session) for one in backends))
    while True:
        await asyncio.sleep(PERIOD)
        failed = {worker.info.index for worker in dispatcher.workers if worker.fault is not None}
        await asyncio.gather(*(_try_again(one, session) for one in backends if one.index in failed))


async def _try_again(backend: Backend, session: aiohttp.ClientSession) -> None:
    if await _ask(f"{backend.url}/models", backend, session) is not None:
        await _learn_slots(backend, session)
        backend.deliver(ExecutorHealth(backend.index, None))


async def _learn_slots(backend: Backend, session: aiohttp.ClientSession) -> None:
    told = await _ask(f"{backend.url.removesuffix('/v1')}/props", backend, session)
    try:
        if told is not None:
            backend.slots.learn(msgspec.json.decode(told, type=_Props).total_slots)
    except msgspec.MsgspecError:
        pass  # it is no llama.cpp


async def _ask(url: str, backend: Backend, session: aiohttp.ClientSession) -> bytes | None:
    """The body of a good answer; None for any other."""
    headers = passed_headers({}, backend.key)
    try:
        async with session.get(url, headers=headers, timeout=PATIENCE) as answer:
            body = await answer.read()
            return body if answer.status < 500 and (answer.status == 200 or url.endswith("/models")) else None
    except (aiohttp.ClientError, TimeoutError):
        return None
