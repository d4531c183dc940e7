"""A request's body: bytes that come in time and in size, as JSON that is what the schema says.

It knows no field; the schema's bounds are the schema's.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec
import orjson
from aiohttp import web

from server.api.errors import ApiError, bad_request, busy
from server.api.generator import DISPATCHER
from server.api.input.admission import count_arrived
from server.api.input.unknown import list_unknown, note_unknown
from server.api.limits import LIMITS, PENDING, Limits, PendingCalls
from server.api.models import model_name
from server.api.output.reply import Head
from server.api.served_model import MODEL

LARGE = 64 * 1024
"""Bytes from which a body is parsed off the event loop, since that takes longer than a token may wait."""

LARGE_BODIES = 64
"""Large bodies that may be under way at a time, since each takes its memory from its first byte on."""

T = TypeVar("T")


class NamesModel(Protocol):
    """A body that may name the model."""

    @property
    def model(self) -> str | None: ...


G = TypeVar("G", bound=NamesModel)


async def read_call(request: web.Request, schema: type[G], prefix: str) -> tuple[G, Head]:
    """The body of a call that generates, and the head of its answer, whose id begins with `prefix`.

    Raises ApiError 400, 404, 408, 413 or 429.
    """
    body = await read_body(request, schema)
    name = model_name(body.model, request.app[MODEL])
    return body, Head(f"{prefix}{secrets.token_hex(16)}", name, request.app[DISPATCHER].now())


async def read_body(request: web.Request, schema: type[T]) -> T:
    """The body as `schema`; raises ApiError 400, 408, 413 or 429."""
    raw = await read_raw(request)
    count_arrived(request)
    refused = request.app[LIMITS].refuse_unknown_fields

    def read() -> tuple[T, tuple[str, ...]]:
        return parse(raw, schema), list_unknown(raw, schema, thoroughly=refused)

    if len(raw) < LARGE:
        body, unknown = read()
    else:
        body, unknown = await asyncio.get_running_loop().run_in_executor(request.app[MODEL].tokenizer_pool, read)
    note_unknown(request, unknown, refused=refused)
    return body


async def read_raw(request: web.Request) -> bytes:
    """The body as it came; raises ApiError 400, 408, 413 or 429."""
    with _hold_room(request, request.app[PENDING]):
        return await _read(request, request.app[LIMITS])


@contextmanager
def _hold_room(request: web.Request, pending: PendingCalls) -> Iterator[None]:
    """Hold room for a body that is large, or does not say; raises ApiError 429."""
    large = request.content_length is None or request.content_length >= LARGE
    if large and pending.large_bodies >= LARGE_BODIES:
        raise busy("too many large requests are being read; try again later", "too_many_large_bodies", 1.0)
    pending.large_bodies += large
    try:
        yield
    finally:
        pending.large_bodies -= large


async def _read(request: web.Request, limits: Limits) -> bytes:
    if (request.content_length or 0) > limits.max_body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout):
            return await request.read()
    except TimeoutError:
        message = f"the request's body did not arrive within {limits.body_timeout:g} s; send it at once"
        raise ApiError(408, message, close=True) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limits) from None


def _too_large(limits: Limits) -> ApiError:
    message = f"the request's body is larger than {limits.max_body_bytes} bytes (--max-body-bytes); shorten it"
    return ApiError(413, message, close=True)


def parse(raw: bytes, schema: type[T]) -> T:
    """JSON text as `schema`; raises ApiError 400 that names the field.

    What the schema does not name is passed over without being built: a body full of empty lists would otherwise
    hold the interpreter, and with it every stream, for half a second.
    """
    try:
        return msgspec.json.decode(raw, type=schema)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the request's body is not valid JSON: {_diagnosis(raw, error)}"
        raise bad_request(message, code="invalid_json") from None


def _diagnosis(raw: bytes, error: Exception) -> str:
    """The fault and its place; orjson words it better, of lone surrogates above all, but builds everything."""
    if len(raw) < LARGE:
        try:
            orjson.loads(raw)
        except orjson.JSONDecodeError as better:
            return str(better)
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_AT_PATH = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)


def _invalid(error: msgspec.ValidationError) -> ApiError:
    """msgspec's message, with the field's name in front as the client wrote it."""
    found = _AT_PATH.match(str(error))
    if found is None:
        return bad_request(f"the request's body: {error}", code="invalid_value")
    path = found["path"]
    param = re.split(r"[.\[]", path)[0]
    return bad_request(f"{path}: {found['what']}", param, "invalid_value")
