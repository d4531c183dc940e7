"""JSON inside a request that is data to this server, not structure: schemas, and the arguments of calls.

It bounds size and depth, since what is made of it (grammars, prompts) is walked more than once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

from server.api.errors import bad_request

MAX_BYTES = 64 * 1024
MAX_DEPTH = 48


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a field was sent, and is not null."""
    return bytes(raw) not in (b"", b"null")


def given_json(raw: bytes, path: str, param: str) -> Any:
    """The value at `path` of a body; raises ApiError 400 where it is not JSON, too large or too deep."""
    if len(raw) > MAX_BYTES:
        raise bad_request(f"{path}: has {len(raw)} bytes, which is more than {MAX_BYTES}; shorten it", param)
    try:
        value = orjson.loads(raw)  # whole numbers beyond 64 bits become floats, else they could not be written again
    except orjson.JSONDecodeError as error:
        raise bad_request(f"{path}: is not valid JSON: {error}", param) from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise bad_request(f"{path}: is nested more than {MAX_DEPTH} deep; flatten it", param)
    return value


def given_object(raw: bytes, path: str, param: str) -> dict[str, Any]:
    """A JSON text of the client that must be an object; raises ApiError 400."""
    value = given_json(raw, path, param)
    if not isinstance(value, dict):
        raise bad_request(f"{path}: must be a JSON object", param)
    return value


def _depth_exceeds(value: Any, most: int) -> bool:
    """Level by level, so that depth costs no recursion."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()
