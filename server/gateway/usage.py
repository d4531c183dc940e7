"""Token counts, read only where an API puts them: answers may repeat clients' text."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, TypeAlias

import msgspec

LINES = 16  # last lines searched

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)] | None


class TokenUsage(msgspec.Struct, frozen=True):
    """Completions have the first, responses and messages the second."""

    completion_tokens: Tokens = None
    output_tokens: Tokens = None


class Reply(msgspec.Struct, frozen=True):
    """Or an event; a response's last holds it whole."""

    usage: TokenUsage | None = None
    response: Reply | None = None


def read_tokens(tail: bytes, *, streams: bool) -> int | None:
    """None if unstated or truncated."""
    for line in reversed(tail.rsplit(b"\n", LINES)) if streams else (tail,):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            reply = msgspec.json.decode(line.removeprefix(b"data:"), type=Reply)
            for one in (reply, reply.response):
                if one is not None and (usage := one.usage) is not None:
                    return usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    return None
