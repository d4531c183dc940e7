"""Questions to backends: whether one that failed is there again, and how much room it has where it tells."""

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

PERIOD = 0.5
"""Seconds between two questions to a backend that failed, or to one at work that tells how many wait."""

PATIENCE = aiohttp.ClientTimeout(5.0)

LARGEST = 2**20  # bytes of an answer that are read
MOST_ENGINES = 64  # engines of a backend whose pages are counted
MOST_SLOTS = 65536

log = logging.getLogger(__name__)

PAGES = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
"""The labels in which vLLM's GET /metrics tells of the pages for K and V of each of its engines."""


SALTING = re.compile(rb"^vllm:", re.MULTILINE)  # metrics of vLLM, and of `lengthwise serve`
NUMBER = rb"(?:\{.*\})? ([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e\+?[0-9]{1,3})?)$"
WAITING = re.compile(rb"^(?:vllm:num_requests_waiting|sglang:num_queue_reqs|llamacpp:requests_deferred)" + NUMBER, re.M)
RUNNING = re.compile(
    rb"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing)" + NUMBER, re.M
)


class _Props(msgspec.Struct, frozen=True):
    """The part of llama.cpp's answer to GET /props that is read."""

    total_slots: Any = None


async def watch_backends(backends: Sequence[Backend], dispatcher: Dispatcher, session: aiohttp.ClientSession) -> None:
    """Ask those that fail again and again until they answer; never returns."""
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
    """Ask for the backend's room, and whether it takes salts, before it is sent a call."""
    root = backend.url.removesuffix("/v1")
    if (told := await _ask(f"{root}/props", backend, session)) is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it is no llama.cpp
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
    """Tell the slots how many calls wait and run, and whether the backend says so."""
    waiting, running = (_sum(one, metrics) for one in (WAITING, RUNNING))
    if waiting is None or running is None:
        return False
    backend.hear(waiting, running)
    return True


def _sum(name: re.Pattern[bytes], metrics: bytes) -> int | None:
    """The sum over all engines; None where none tells."""
    found = [float(one) for one in name.findall(metrics)]
    return int(sum(found)) if found and 0 <= sum(found) < ROOM else None


def _tokens(labels: bytes) -> int:
    """Tokens in an engine's pages: a product is too much where some layers keep a window only."""
    told = _label(b"kv_cache_size_tokens", labels)
    return told or _label(b"num_gpu_blocks", labels) * _label(b"block_size", labels)


def _label(name: bytes, labels: bytes) -> int:
    """The number that a label has; 0 where it has none."""
    found = re.search(rb'\b%b="(\d{1,15})"' % name, labels)
    return int(found[1]) if found else 0


async def _ask(url: str, backend: Backend, session: aiohttp.ClientSession) -> bytes | None:
    """The body of a good answer; None for any other."""
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
    except Exception:  # no answer may end the watch over the other backends
        log.exception("%s cannot be read", url)
        return None
