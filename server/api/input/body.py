"""A request's body: in time, bounded, and JSON of the schema."""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import msgspec
import orjson
from aiohttp import web
from msgspec import inspect

from server.access import HOLDER
from server.api.errors import ApiError, bad_request, busy, invalid
from server.api.input.messages import MessagesBody
from server.api.input.program import PROGRAMS, read_signs
from server.api.input.promise import HEADER, read_header
from server.api.input.schema import GenerationBody
from server.api.register import Record
from server.api.served_model import LIMITS, MODEL, model_name
from server.api.ticket import PENDING, TICKET
from server.config import FrontConfig
from server.json_depth import MAX_DEPTH, TOO_DEEP

LARGE = 64 * 1024  # bytes from which on a body is parsed off the event loop

MAX_NESTED = 2**16  # objects, lists and names of a large body: building them blocks everything else

MAX_STRINGS = 2**18
MAX_VALUES = 2**20

BODIES = 64  # bodies of the greatest size held until parsed

BODIES_OF_ONE = 16  # of one sender

PACKED = ("gzip", "x-gzip", "deflate")
UNPACKED = ("", "identity")

T = TypeVar("T")
G = TypeVar("G", bound=GenerationBody | MessagesBody)


async def read_call(request: web.Request, schema: type[G], prefix: str) -> tuple[G, Record]:
    """With the record, whose id begins with `prefix`. Raises ApiError 400, 404, 408, 413 or 429."""
    app = request.app
    async with hold_body(request) as raw:
        request[TICKET].count_answers(1)
        body, large = await decode(raw, schema, app), len(raw) >= LARGE
        run = app[MODEL].run_in_thread
        signs = await run(read_signs, raw, request.headers) if large else read_signs(raw, request.headers)
    if HEADER in request.headers and body.promise is None:
        body = msgspec.structs.replace(body, promise=read_header(request.headers))
    name, user = model_name(body.model, app[MODEL]), getattr(body, "user", None)
    record = Record.of(request, prefix, name, user, stream=bool(body.stream))
    answer = record.id if prefix == "resp_" else ""
    record.program = app[PROGRAMS].recognize(record.client, signs, record.arrival, answer)
    return body, record


async def read_body(request: web.Request, schema: type[T]) -> T:
    """Raises ApiError 400, 408, 413, 415 or 429."""
    async with hold_body(request) as raw:
        return await decode(raw, schema, request.app)


@asynccontextmanager
async def hold_body(request: web.Request) -> AsyncIterator[bytes]:
    """The unpacked bytes, which count as held inside the context. Raises ApiError 400, 408, 413, 415 or 429."""
    held, body = request.app[PENDING].body_bytes, bytearray()
    sender = request.get(HOLDER) or request.remote or ""
    try:
        await _receive(request, body, held, sender)
        yield bytes(body)
    finally:
        held[sender] -= len(body)
        if not held[sender]:
            del held[sender]


async def decode(raw: bytes, schema: type[T], app: web.Application) -> T:
    """Large texts in a thread. Raises ApiError 400."""
    if len(raw) < LARGE:
        return parse(raw, schema)
    return await app[MODEL].run_in_thread(parse, raw, schema)


async def _receive(request: web.Request, body: bytearray, held: Counter[str], sender: str) -> None:
    limits, received = request.app[LIMITS], 0
    most = limits.max_body_bytes
    if (request.content_length or 0) > most:
        raise _too_large(limits)
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in (*PACKED, *UNPACKED):
        message = "Content-Encoding: only gzip, deflate and identity are read; send the body as it is"
        raise ApiError(415, message, close=True)
    # 32: either header
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress if encoding in PACKED else None
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for piece in request.content.iter_any():
                received += len(piece)
                piece = piece if unpack is None else unpack(piece, most - len(body) + 1)
                size = len(piece)
                if max(len(body) + size, received) > most:
                    raise _too_large(limits)
                if held.total() + size > BODIES * most or held[sender] + size > BODIES_OF_ONE * most:
                    message = "too many large requests are being read; try again later"
                    raise busy(message, "too_many_large_bodies", 1.0, close=True)
                held[sender] += size
                body += piece
    except TimeoutError:
        message = f"the request's body did not arrive within {limits.body_timeout:g} s; send it at once"
        raise ApiError(408, message, close=True) from None
    except zlib.error:
        raise ApiError(400, "the request's body cannot be read: its encoding is broken", close=True) from None


def _too_large(limits: FrontConfig) -> ApiError:
    message = f"the request's body is larger than {limits.max_body_bytes} bytes (--max-body-bytes); shorten it"
    return ApiError(413, message, close=True)


def check_parts(raw: bytes) -> None:
    """Raise ApiError 400 for too many objects, lists and names, or too deep ones."""
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    strings, nested, values, outside = bare.count(b'"') // 2, 0, 0, b""
    if strings <= MAX_STRINGS:
        outside = b"".join(bare.split(b'"')[::2])
        nested, values = max(map(outside.count, (b"[", b"{", b":"))), outside.count(b",")
    if strings > MAX_STRINGS or nested > MAX_NESTED or values > MAX_VALUES:
        most = f"{MAX_VALUES} values, {MAX_STRINGS} strings, or {MAX_NESTED} lists, objects or names"
        raise bad_request(f"the request's body has more than {most}; send fewer at a time", code="too_many_values")
    steps = (1 if one in b"[{" else -1 for one in outside.translate(None, _NO_BRACKETS))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise bad_request(TOO_DEEP, code="invalid_json")


_NO_BRACKETS = bytes({*range(256)}.difference(b"[]{}"))


def parse(raw: bytes, schema: type[T]) -> T:
    """Raises ApiError 400 that names the field. Unknown fields are skipped without building their values."""
    if len(raw) >= LARGE or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        check_parts(raw)
    try:
        try:
            return msgspec.json.decode(raw, type=schema)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            return msgspec.json.decode(_NUMBER.sub(_spell_integer, raw), type=schema)
    except msgspec.ValidationError as error:
        found = _AT_PATH.match(str(error))
        if found is None:
            missing = _MISSING.match(str(error))
            fault = str(error) if missing is None else f"this path wants `{missing[1]}`"
            raise bad_request(f"the request's body: {fault}", missing and missing[1], "invalid_value") from None
        fault = found["fault"]
        if fault.startswith("Invalid enum value"):
            values = _find_values(_inspect(cast(Any, schema)), re.findall(r"\w+|\.\.\.", found["path"]))
            fault += f": it is one of {', '.join(values)}"
        raise invalid(found["path"], fault, "invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(raw, error) from None


_inspect = cache(inspect.type_info)  # takes milliseconds


def _find_values(kind: inspect.Type, path: list[str]) -> Iterator[str]:
    match kind:
        case inspect.UnionType(types=kinds):
            for one in kinds:
                yield from _find_values(one, path)
        case inspect.Metadata(type=inner):
            yield from _find_values(inner, path)
        case inspect.ListType(item_type=item) if path:
            yield from _find_values(item, path[1:])
        case inspect.StructType(fields=fields) if path:
            yield from (
                value for one in fields if one.encode_name == path[0] for value in _find_values(one.type, path[1:])
            )
        case inspect.LiteralType(values=values) if not path:
            yield from map(str, values)


def unreadable(raw: bytes, error: Exception) -> ApiError:
    return bad_request(f"the request's body is not valid JSON: {_diagnosis(raw, error)}", code="invalid_json")


def _diagnosis(raw: bytes, error: Exception) -> str:
    if len(raw) < LARGE:
        try:
            orjson.loads(raw)
        except orjson.JSONDecodeError as better:
            return str(better)
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


# possessive (`*+`), so that unterminated quotes take linear time
_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*+"?|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?', re.DOTALL)


def _spell_integer(found: re.Match[bytes]) -> bytes:
    """JSON does not distinguish 1.0 from 1."""
    text = found[0]
    if text.startswith(b'"') or not set(text) & set(b".eE"):
        return text
    if abs(float(text)) < 2**64 and (value := Decimal(text.decode())) == value.to_integral_value():
        return b"%d" % int(value)
    return text


_MISSING = re.compile("^Object missing required field `(.+)`$")

# msgspec's message, ending with the field
_AT_PATH = re.compile(r"^(?P<fault>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
