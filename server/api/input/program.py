"""Signs of the program that sent a call; without a tokenizer, for server and gateway."""

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw

from scheduler.programs.recognizer import Recognizer, Signs

# docs/programs.md names the programs and versions that send these
HEADERS = ("session-id", "x-session-id", "x-session-affinity", "thread-id")
AGENT = "x-claude-code-agent-id"  # a subagent, within its session
CHILDREN = {  # own -> parent, which subagents have
    AGENT: "x-claude-code-parent-agent-id",
    "thread-id": "x-codex-parent-thread-id",
    "x-session-id": "x-parent-session-id",
}
LONGEST = 256  # characters
SESSION = re.compile(r'"session_id"\s*:\s*"([^"]+)"|_session_([0-9a-f-]{36})')  # in Claude Code's `metadata.user_id`
UNIQUE = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)  # else a key may be many runs'
MOST_MESSAGES = 4096

# what programs change in messages that they repeat
_CACHED = re.compile(rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
_ONE_TEXT = re.compile(
    rb'\[\s*\{\s*"type"\s*:\s*"(?:input_|output_)?text"\s*,\s*"text"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*\}\s*\]'
)
_REFERENCE = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')
_TOLD = re.compile(rb'"role"\s*:\s*"(?:system|developer)"')


class SignFields(msgspec.Struct, frozen=True):
    messages: Raw = msgspec.field(default_factory=Raw)
    input: Raw = msgspec.field(default_factory=Raw)
    system: Raw = msgspec.field(default_factory=Raw)
    instructions: Raw = msgspec.field(default_factory=Raw)
    tools: Raw = msgspec.field(default_factory=Raw)
    metadata: Any = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None


PROGRAMS = web.AppKey("programs", Recognizer)


def read_signs(body: bytes, headers: Mapping[str, str], fields: SignFields | None = None) -> Signs:
    """Of a body that is JSON, or of its `fields`; others have none."""
    try:
        fields = msgspec.json.decode(body, type=SignFields) if fields is None else fields
        # before the last of a system prompt's parts stand headers that change
        messages, told = (
            msgspec.json.decode(raw, type=list[Raw]) if raw.startswith(b"[") else [raw] * bool(raw)
            for raw in (bytes(fields.messages or fields.input), bytes(fields.system or fields.instructions))
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Signs()
    messages, told = [bytes(one) for one in messages[:MOST_MESSAGES]], [bytes(one) for one in told[-1:]]
    told = told or [one for one in messages[:1] if _TOLD.search(one)] or [bytes(fields.tools)]
    digest, kind, chain = blake2b(digest_size=16), "", list[bytes]()
    for message in (*told, *messages):
        text = _CACHED.sub(b"", message) if b'"cache_control"' in message else message
        digest.update(_ONE_TEXT.sub(rb"\1", text) if b'"type"' in text else text)
        chain.append(digest.digest())
        kind = kind or digest.hexdigest()
    names = [f"header {headers[name][:LONGEST]}" for name in HEADERS if headers.get(name)]
    if fields.metadata or fields.prompt_cache_key:
        names += _names(fields)
    earlier = [fields.previous_response_id] if isinstance(fields.previous_response_id, str) else []
    if b'"item_reference"' in body:
        named = (_REFERENCE.search(one) for one in reversed(messages) if b'"item_reference"' in one)
        items = (one[1].decode() for one in named if one)
        earlier += [name for item in items for name in (item, f"resp_{item.rpartition('_')[2]}")]  # ours: one's digits
    names, parents = _part_parents(headers, names) if any(one in headers for one in CHILDREN) else (names, [])
    return Signs(kind, chain[1:], names, earlier, parents)


def _part_parents(headers: Mapping[str, str], names: list[str]) -> tuple[list[str], list[str]]:
    for own, parent in CHILDREN.items():
        if headers.get(own) and (own == AGENT or headers.get(parent)):
            scope = "".join(names[:1]) if own == AGENT else ""
            name, above = (f"header {headers.get(one, '')[:LONGEST]}{scope}" for one in (own, parent))
            return [name], [above, *names]
    return names, []


def _names(fields: SignFields) -> Iterator[str]:
    user = fields.metadata.get("user_id") if isinstance(fields.metadata, dict) else None
    if isinstance(user, str) and (found := SESSION.search(user)):
        yield f"session {found[1] or found[2]}"[:LONGEST]
    if isinstance(fields.prompt_cache_key, str) and UNIQUE.search(fields.prompt_cache_key):
        yield f"key {fields.prompt_cache_key[:LONGEST]}"
