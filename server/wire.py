"""Typed structures to the bytes that go over the wire."""

from __future__ import annotations

import msgspec
import orjson


def encode(body: msgspec.Struct) -> bytes:
    """JSON of a response or an event."""
    return orjson.dumps(msgspec.to_builtins(body))
