"""Token counts and ids, read only where an API puts them: answers may repeat clients' text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

LINES = 16  # last lines searched
LIMITED = frozenset({"length", "model_length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})

T = TypeVar("T")
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)] | None


class TokenUsage(msgspec.Struct, frozen=True):
    """Completions have the first, responses and messages the second."""

    completion_tokens: Tokens = None
    output_tokens: Tokens = None


class Reply(msgspec.Struct, frozen=True):
    """Or an event; a response's last holds it whole."""

    usage: TokenUsage | None = None
    response: Reply | None = None


class End(msgspec.Struct, frozen=True):
    """Of each API, whole or an event."""

    choices: list[dict[str, Any]] = []
    delta: Any = None
    stop_reason: Any = None
    error: Any = None
    incomplete_details: Any = None
    response: End | None = None

    def words(self) -> Iterator[Any]:
        yield from (one.get("finish_reason") for one in self.choices)
        yield from (self.stop_reason, "error" if self.error else None)
        for one, name in ((self.delta, "stop_reason"), (self.incomplete_details, "reason")):
            yield one.get(name) if isinstance(one, dict) else None


class Item(msgspec.Struct, frozen=True):
    id: str = ""


class Output(msgspec.Struct, frozen=True):
    """A response, or its last event."""

    id: str = ""
    output: list[Item] = []
    response: Output | None = None


def read_tokens(tail: bytes, *, streams: bool) -> int | None:
    """None if unstated or truncated."""
    for reply in _replies(tail, Reply, streams=streams):
        for one in (reply, reply.response):
            if one is not None and (usage := one.usage) is not None:
                return usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    return None


def read_ends(tail: bytes, *, streams: bool) -> set[str]:
    """The backend's words for why the answer ended; empty where it says none."""
    ends = [end for one in _replies(tail, End, streams=streams) for end in (one, one.response) if end is not None]
    return {word for end in ends for word in end.words() if isinstance(word, str) and word}


def read_ids(tail: bytes, *, streams: bool) -> list[str]:
    """A response's, then its items'."""
    whole = (reply.response or reply for reply in _replies(tail, Output, streams=streams))
    return next(([one.id, *(item.id for item in one.output)] for one in whole if one.id), [])


def _replies(tail: bytes, kind: type[T], *, streams: bool) -> Iterator[T]:
    """Latest first."""
    for line in reversed(tail.rsplit(b"\n", LINES)) if streams else (tail,):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield msgspec.json.decode(line.removeprefix(b"data:"), type=kind)
