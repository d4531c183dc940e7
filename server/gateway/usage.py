"""The count of an answer's tokens, read from where its API has it and from nowhere else: a backend may repeat in an
answer what a client wrote.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, TypeAlias

import msgspec

LINES = 16  # last lines of a stream in which its usage is looked for

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)] | None


class Usage(msgspec.Struct, frozen=True):
    """Chat and text completions have the first, responses and messages the second."""

    completion_tokens: Tokens = None
    output_tokens: Tokens = None


class Reply(msgspec.Struct, frozen=True):
    """The part of an answer, or of an event of one, that is read; the last event of a response holds it whole."""

    usage: Usage | None = None
    response: Reply | None = None


def read_tokens(tail: bytes, *, streams: bool) -> int | None:
    """The tokens that an answer's end states; None where it states none, or the tail has not all of its last event."""
    for line in reversed(tail.rsplit(b"\n", LINES)) if streams else (tail,):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            reply = msgspec.json.decode(line.removeprefix(b"data:"), type=Reply)
            for one in (reply, reply.response):
                if one is not None and (usage := one.usage) is not None:
                    return usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    return None
