"""Probes backends for recovery and capacity."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import aiohttp
import msgspec
import orjson

from scheduler.dispatcher import Dispatcher
from server.gateway.backend import NO_API, ROOM, Backend
from server.gateway.health import explain
from server.gateway.merged import FOREIGN
from server.gateway.operations import OPERATIONS
from server.http.proxy import passed_headers

PERIOD = 0.5  # seconds between probes

PATIENCE = aiohttp.ClientTimeout(5.0)

LARGEST = 2**20  # bytes read of an answer
MOST_ENGINES = 64  # counted at a backend
MOST_SLOTS = 65536
MOST_NAMES, MOST_NAME = 32, 100  # models, and characters of a name, that are logged

QUEUED = [one.path.removeprefix("/v1") for one in OPERATIONS if (one.generates or one.rationed) and "{" not in one.path]
UNKNOWN = frozenset({404, 405, 501})  # statuses of a path that is not there

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
        serving = [one for one in backends if one.fault is None]
        await asyncio.gather(
            *(_try_again(one, session) for one in backends if one.fault is not None),
            *(_ask_queue(one, session) for one in serving if one.tells and one.slots.busy),
            *(_ask_silent(one, session) for one in serving if one.silent and len(serving) > 1),
        )


async def _try_again(backend: Backend, session: aiohttp.ClientSession) -> None:
    if time.monotonic() < backend.health.until:
        return
    if backend.health.silent:
        await _find(backend, session, wait=False)
    else:
        backend.set_fault(None)


async def _ask_silent(backend: Backend, session: aiohttp.ClientSession) -> None:
    if await _page(f"{backend.url}/models", backend, session) is None and backend.silent:
        backend.leave_silent()


async def check_start(backends: Sequence[Backend], session: aiohttp.ClientSession, *, wait: bool) -> None:
    """Ask all backends for their models, logging slips; with `wait` until all answer."""
    served = await asyncio.gather(*(_find(one, session, wait=wait) for one in backends))
    if len({names for names in served if names}) > 1:
        log.warning("the backends serve different models, and a call may go to any of them")


async def _find(backend: Backend, session: aiohttp.ClientSession, *, wait: bool) -> frozenset[str]:
    """Models; empty where none are listed."""
    while True:
        asked = await _models(backend, session)
        if not 0 < asked[0] < 500:
            backend.health.silent, fault = True, f"GET {backend.url}/models: {_reason(*asked)}"
        elif asked[0] == 404 and not (backend.answered or await _has_operation(backend, session)):
            backend.health.rest(None)
            fault = NO_API
        else:
            break
        backend.set_fault(fault)
        if not wait:
            return frozenset()
        await asyncio.sleep(max(PERIOD, backend.health.until - time.monotonic()))
    if names := _names(asked[1]):
        log.info("backend %s serves %s", backend.url, ", ".join(sorted(names)[:MOST_NAMES]))
    elif not backend.answered:
        reason = _reason(*asked)
        log.warning("%s/models names none (%s): is this an API's URL, and its key right?", backend.url, reason)
    backend.context, backend.estimates = _context(asked[1]), b'"owned_by":"lengthwise"' in asked[1]
    await learn_room(backend, session)
    backend.set_fault(None)
    return names


async def _models(backend: Backend, session: aiohttp.ClientSession) -> tuple[int, bytes]:
    """The answer, and the URL with the /v1 that it lacks."""
    asked, longer = await _ask(f"{backend.url}/models", backend, session), f"{backend.url}/v1"
    if asked[0] == 404 and longer.count("/v1") == 1:
        more = await _ask(f"{longer}/models", backend, session)
        if more[0] == 200:
            log.warning("backend %s has its API at %s, which is used", backend.url, longer)
            backend.url = longer
            return more
    return asked


async def _has_operation(backend: Backend, session: aiohttp.ClientSession) -> bool:
    """Whether any path refuses an empty call otherwise than as unknown."""
    for path in QUEUED:
        if (await _ask(backend.url + path, backend, session, b"{}"))[0] not in UNKNOWN:
            return True
    return False


def _reason(status: int, body: bytes) -> str:
    reason = f"status {status}" if status else body.decode(errors="replace")
    return reason + "; SSL_CERT_FILE may name its certificate" * ("CERTIFICATE_VERIFY" in reason)


def _names(models: bytes) -> frozenset[str]:
    with suppress(*FOREIGN):
        ids = (str(one["id"])[:MOST_NAME] for one in orjson.loads(models)["data"])
        return frozenset("".join(filter(str.isprintable, one)) for one in ids)
    return frozenset()


def _context(models: bytes) -> int:
    """The longest, as vLLM and SGLang list it; ROOM where none is."""
    with suppress(*FOREIGN):
        told = (one.get("max_model_len") for one in orjson.loads(models)["data"])
        return max((one for one in told if type(one) is int and 1 < one < ROOM), default=ROOM)
    return ROOM


async def learn_room(backend: Backend, session: aiohttp.ClientSession) -> None:
    """Capacity and salts, before the first call."""
    root = backend.url.removesuffix("/v1")
    if (told := await _page(f"{root}/props", backend, session)) is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # not llama.cpp
            slots = msgspec.json.decode(told, type=_Props).total_slots
            if type(slots) is int and 1 <= slots <= MOST_SLOTS:
                backend.slots.learn(slots)
            elif slots is not None:
                log.warning("%s/props: total_slots is no number from 1 to %d, and is ignored", root, MOST_SLOTS)
    metrics = await _page(f"{root}/metrics", backend, session) or b""
    backend.salts |= SALTING.search(metrics) is not None
    pages = [found[1] for found in islice(PAGES.finditer(metrics), MOST_ENGINES)]
    backend.tells = _tell_queue(backend, metrics)
    backend.room = min(sum(map(_tokens, pages)), ROOM) or ROOM


async def _ask_queue(backend: Backend, session: aiohttp.ClientSession) -> None:
    root = backend.url.removesuffix("/v1")
    _tell_queue(backend, await _page(f"{root}/metrics", backend, session) or b"")


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


async def _page(url: str, backend: Backend, session: aiohttp.ClientSession) -> bytes | None:
    """A good answer's body, else None."""
    status, body = await _ask(url, backend, session)
    return body if status == 200 or (0 < status < 500 and url.endswith("/models")) else None


async def _ask(
    url: str, backend: Backend, session: aiohttp.ClientSession, call: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body; 0 and the reason without an answer."""
    headers = [*passed_headers((), backend.key), ("Connection", "close"), ("Content-Type", "application/json")]
    method = "GET" if call is None else "POST"
    try:
        async with session.request(
            method, url, headers=headers, data=call, timeout=PATIENCE, allow_redirects=False
        ) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > LARGEST:
                    if url not in backend.oversized:
                        log.warning("%s has more than %d bytes; the rest is ignored", url, LARGEST)
                    backend.oversized.add(url)
                    break
            return answer.status, bytes(body)
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, (explain(error) or f"no answer within {PATIENCE.total:.0f} s").encode()
    except Exception as error:  # no answer may end the watch over the other backends
        log.exception("%s cannot be read", url)
        return 0, str(error).encode()
