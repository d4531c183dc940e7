"""Signs of the program that sent a call, from body and headers; without a tokenizer, for server and gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw

from scheduler.programs.recognizer import Recognizer, Signs
from server.api.register import Record

# docs/programs.md names the programs and versions that send these
HEADERS = ("session-id", "x-session-id", "x-session-affinity")
SESSION = re.compile(r'"session_id"\s*:\s*"([^"]+)"|_session_([0-9a-f-]{36})')  # in Claude Code's `metadata.user_id`
UNIQUE = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)  # else a key may be many runs'
LONGEST = 256  # characters of a name
MOST_MESSAGES = 4096

# what programs change in messages that they repeat
_CACHED = re.compile(rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
_ONE_TEXT = re.compile(
    rb'\[\s*\{\s*"type"\s*:\s*"(?:input_|output_)?text"\s*,\s*"text"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*\}\s*\]'
)
_REFERENCE = re.compile(rb'"item_reference"')
_TOLD = re.compile(rb'"role"\s*:\s*"(?:system|developer)"')


class _Fields(msgspec.Struct, frozen=True):
    messages: Raw = msgspec.field(default_factory=Raw)
    input: Raw = msgspec.field(default_factory=Raw)
    system: Raw = msgspec.field(default_factory=Raw)
    instructions: Raw = msgspec.field(default_factory=Raw)
    tools: Raw = msgspec.field(default_factory=Raw)
    metadata: Any = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None


PROGRAMS = web.AppKey("programs", Recognizer)


def note_program(app: web.Application, record: Record, signs: Signs) -> None:
    """For a call that comes now."""
    record.program = app[PROGRAMS].recognize(record.client, signs, record.arrival, record.id)


def read_signs(body: bytes, headers: Mapping[str, str]) -> Signs:
    """Of a body that is JSON; others have none."""
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return _read(msgspec.json.decode(body, type=_Fields), headers)
    return Signs()


def _read(fields: _Fields, headers: Mapping[str, str]) -> Signs:
    messages = _items(bytes(fields.messages or fields.input))[:MOST_MESSAGES]
    told = _items(bytes(fields.system or fields.instructions))[-1:]  # before stand headers that change
    told = told or [one for one in messages[:1] if _TOLD.search(one)] or [bytes(fields.tools)]
    kind = blake2b(_settle(told[0]), digest_size=16)
    digest, chain = kind.copy(), list[bytes]()
    for message in messages:
        digest.update(_settle(message))
        chain.append(digest.digest())
    return Signs(kind.hexdigest(), chain, [*_names(fields, headers)], [*_earlier(fields, messages)])


def _items(raw: bytes) -> list[bytes]:
    """Of a list, or the text alone."""
    if not raw.startswith(b"["):
        return [raw] if raw else []
    return [bytes(one) for one in msgspec.json.decode(raw, type=list[Raw])]


def _settle(message: bytes) -> bytes:
    if b'"cache_control"' in message:
        message = _CACHED.sub(b"", message)
    return _ONE_TEXT.sub(rb"\1", message)


def _names(fields: _Fields, headers: Mapping[str, str]) -> Iterator[str]:
    yield from (f"header {headers[name][:LONGEST]}" for name in HEADERS if headers.get(name))
    user = fields.metadata.get("user_id") if isinstance(fields.metadata, dict) else None
    if isinstance(user, str) and (found := SESSION.search(user)):
        yield f"session {found[1] or found[2]}"[:LONGEST]
    if isinstance(fields.prompt_cache_key, str) and UNIQUE.search(fields.prompt_cache_key):
        yield f"key {fields.prompt_cache_key[:LONGEST]}"


def _earlier(fields: _Fields, messages: list[bytes]) -> Iterator[str]:
    if isinstance(fields.previous_response_id, str):
        yield fields.previous_response_id
    for one in reversed(messages):
        if _REFERENCE.search(one):
            name = msgspec.json.decode(one, type=dict[str, Any]).get("id")
            if isinstance(name, str):
                yield re.sub(r"^[a-z]+_([0-9a-f]{32}).*", r"resp_\1", name)
