"""Probes backends for recovery and capacity."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import aiohttp
import msgspec

from scheduler.dispatcher import Dispatcher
from server.gateway.backend import ROOM, Backend
from server.http.proxy import passed_headers

PERIOD = 0.5  # seconds between probes

PATIENCE = aiohttp.ClientTimeout(5.0)

LARGEST = 2**20  # bytes read of an answer
MOST_ENGINES = 64  # counted at a backend
MOST_SLOTS = 65536

log = logging.getLogger(__name__)

# vLLM's GET /metrics: pages of each engine's KV cache
PAGES = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


SALTING = re.compile(rb"^vllm:", re.MULTILINE)  # vLLM, and `lengthwise serve`
NUMBER = rb"(?:\{.*\})? ([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e\+?[0-9]{1,3})?)$"
WAITING = re.compile(rb"^(?:vllm:num_requests_waiting|sglang:num_queue_reqs|llamacpp:requests_deferred)" + NUMBER, re.M)
RUNNING = re.compile(
    rb"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing)" + NUMBER, re.M
)


class _Props(msgspec.Struct, frozen=True):
    """Of llama.cpp's GET /props."""

    total_slots: Any = None


async def watch_backends(backends: Sequence[Backend], dispatcher: Dispatcher, session: aiohttp.ClientSession) -> None:
    """Never returns."""
    while True:
        await asyncio.sleep(PERIOD)
        failed = {worker.index for worker in dispatcher.workers if worker.fault is not None}
        await asyncio.gather(
            *(_try_again(one, session) for one in backends if one.index in failed),
            *(_ask_queue(one, session) for one in backends if one.tells and one.slots.busy and one.index not in failed),
        )


async def _try_again(backend: Backend, session: aiohttp.ClientSession) -> None:
    if await _ask(f"{backend.url}/models", backend, session) is not None:
        await learn_room(backend, session)
        backend.set_fault(None)


async def learn_room(backend: Backend, session: aiohttp.ClientSession) -> None:
    """Capacity and salts, before the first call."""
    root = backend.url.removesuffix("/v1")
    if (told := await _ask(f"{root}/props", backend, session)) is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # not llama.cpp
            slots = msgspec.json.decode(told, type=_Props).total_slots
            if type(slots) is int and 1 <= slots <= MOST_SLOTS:
                backend.slots.learn(slots)
            elif slots is not None:
                log.warning("%s/props: total_slots is no number from 1 to %d, and is ignored", root, MOST_SLOTS)
    metrics = await _ask(f"{root}/metrics", backend, session) or b""
    backend.salts |= SALTING.search(metrics) is not None
    pages = [found[1] for found in islice(PAGES.finditer(metrics), MOST_ENGINES)]
    backend.tells = _tell_queue(backend, metrics)
    backend.room = min(sum(map(_tokens, pages)), ROOM) or ROOM


async def _ask_queue(backend: Backend, session: aiohttp.ClientSession) -> None:
    root = backend.url.removesuffix("/v1")
    _tell_queue(backend, await _ask(f"{root}/metrics", backend, session) or b"")


def _tell_queue(backend: Backend, metrics: bytes) -> bool:
    waiting, running = (_sum(one, metrics) for one in (WAITING, RUNNING))
    if waiting is None or running is None:
        return False
    backend.hear(waiting, running)
    return True


def _sum(name: re.Pattern[bytes], metrics: bytes) -> int | None:
    """Over all engines, or None."""
    found = [float(one) for one in name.findall(metrics)]
    return int(sum(found)) if found and 0 <= sum(found) < ROOM else None


def _tokens(labels: bytes) -> int:
    told = _label(b"kv_cache_size_tokens", labels)
    return told or _label(b"num_gpu_blocks", labels) * _label(b"block_size", labels)


def _label(name: bytes, labels: bytes) -> int:
    """0 if absent."""
    found = re.search(rb'\b%b="(\d{1,15})"' % name, labels)
    return int(found[1]) if found else 0


async def _ask(url: str, backend: Backend, session: aiohttp.ClientSession) -> bytes | None:
    """Body of a 2xx response, or None."""
    headers = [*passed_headers({}, backend.key), ("Connection", "close")]
    try:
        async with session.get(url, headers=headers, timeout=PATIENCE, allow_redirects=False) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > LARGEST:
                    log.warning("%s has more than %d bytes; the rest is ignored", url, LARGEST)
                    break
            return bytes(body) if answer.status < 500 and (answer.status == 200 or url.endswith("/models")) else None
    except (aiohttp.ClientError, TimeoutError):
        return None
    except Exception:  # no answer may stop the watch
        log.exception("%s cannot be read", url)
        return None
