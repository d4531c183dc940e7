"""JSON of large replies, made off the event loop a piece at a time: no other client waits for it, and no more of it is
in memory than is on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

import msgspec
import orjson
from aiohttp import web

from engine.messages import RowUpdate
from server.api.output.reply import encode, json_response
from server.api.served_model import MODEL

LARGE = 1000
"""Weight from which a reply is made off the event loop: there it would take about two milliseconds."""

LETTERS = 64
"""Characters of text that take about as long as one log-probability."""

PIECE = 64 * 1024
"""Bytes, about, that are made and sent at a time."""

DEPTH = 5
"""Levels that are taken apart: a reply, its choices, a choice, its log-probabilities, their tokens."""

S = TypeVar("S")
T = TypeVar("T")


class Lazy(Sequence[T], Generic[S, T]):
    """A list in a reply whose items are made one after the other, once, when it is encoded."""

    def __init__(self, make: Callable[[S], T], items: Sequence[S]) -> None:
        self._make, self._items = make, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._items[place])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)


def weigh(update: RowUpdate) -> int:
    """How long an update takes to encode, in log-probabilities."""
    told = (tokens for tokens in (update.logprobs, update.prompt_logprobs) if tokens)
    entries = sum(len(tokens) * (1 + (0 if tokens[-1] is None else len(tokens[-1].top))) for tokens in told)
    return len(update.token_ids) + entries + len(update.text) // LETTERS


def encode_pieces(value: object, depth: int = DEPTH) -> Iterator[bytes]:
    """JSON of a reply, in small pieces."""
    if depth and isinstance(value, msgspec.Struct):
        yield from _enclose(b"{}", (_member(*pair, depth) for pair in _members(value)))
    elif depth and isinstance(value, (list, Lazy)):
        yield from _enclose(b"[]", (encode_pieces(item, depth - 1) for item in value))
    else:
        yield encode(value)


def _enclose(brackets: bytes, inner: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    before = brackets[:1]
    for pieces in inner:
        yield before
        yield from pieces
        before = b","
    yield brackets if before == brackets[:1] else brackets[1:]


def _member(name: str, value: object, depth: int) -> Iterator[bytes]:
    yield orjson.dumps(name) + b":"
    yield from encode_pieces(value, depth - 1)


def _members(struct: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Fields that are shown, with their values; its tag comes first."""
    config = struct.__struct_config__
    if config.tag is not None and config.tag_field is not None:
        yield config.tag_field, config.tag
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    omitted = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for name in names:
        value = getattr(struct, name)
        hidden = config.omit_defaults and name in omitted and value == omitted[name]
        if value is not msgspec.UNSET and not hidden:
            yield name, value


def encode_whole(value: object) -> bytes:
    """JSON of a reply, as one; other threads come to their turn while it is made."""
    return b"".join(encode_pieces(value))


async def in_thread(pool: Executor, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces joined to about PIECE bytes, each made in the pool when it is asked for."""
    loop = asyncio.get_running_loop()
    while piece := await loop.run_in_executor(pool, _take, pieces):
        yield piece


def _take(pieces: Iterator[bytes]) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= PIECE:
            break
    return b"".join(taken)


async def send_reply(request: web.Request, reply: msgspec.Struct, weight: int) -> web.StreamResponse:
    """Answer with a reply of that weight; large ones are sent while they are made."""
    if weight < LARGE:
        return json_response(reply)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    pieces = in_thread(request.app[MODEL].tokenizer_pool, encode_pieces(reply))
    first = await anext(pieces)  # what fails at once is an error with a status of its own
    await response.prepare(request)
    await response.write(first)
    async for piece in pieces:
        await response.write(piece)
    return response
