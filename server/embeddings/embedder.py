"""Texts and token ids of clients -> embeddings, by a process of its own.

What a call brings goes to the process in pieces, so that calls take turns and none makes another wait for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from server.embeddings.worker import EmbedIds, FloatMatrix, Ids, InputIds, ReadInputs, Refusal
from server.process.worker_process import WorkerProcess

TIMEOUT = 60.0
"""Seconds without a reply to a piece after which the process stands still."""

PIECE, PIECE_LETTERS, PIECE_TOKENS = 16, 2**16, 2048
"""Inputs, letters and padded tokens of a piece at most, unless one input has more."""

MOST_LETTERS = 2**24
"""Letters, or token ids, of all calls that wait; a call by itself may always have more."""

T = TypeVar("T", bound=Sized)


class Refused(Exception):
    """The client has to change something, as `refusal` tells; its place counts from the first input."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Busy(Exception):
    """Too much waits."""


class NotFetched(Exception):
    """The model is not on this machine."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Embeddings as rows (n, dim), and the tokens that were read for them."""

    embeddings: FloatMatrix
    tokens: int


class TextEmbedder:
    """Embeds for clients. Event loop only."""

    def __init__(self, name: str, process: WorkerProcess, fetched: Callable[[], bool] = lambda: True) -> None:
        """`name` is that of the sentence embedder, which `process` has; `fetched` tells whether it is here."""
        self.name = name
        self._fetched = fetched
        self._process = process
        self._waiting = 0

    async def embed(self, inputs: Sequence[str | Ids], dimensions: int | None, most_tokens: int) -> Embedded:
        """Embed inputs that have `most_tokens` together at most. Raises Refused, Busy, NotFetched
        and ProcessFailed."""
        if not self._process.running and not await asyncio.to_thread(self._fetched):
            raise NotFetched
        with self._counted(sum(map(len, inputs))):
            ids = await self._read(inputs)
            tokens = sum(map(len, ids))
            if tokens > most_tokens:
                message = f"has {tokens} tokens, and a request may have {most_tokens}; send fewer at a time"
                raise Refused(Refusal(message, code="too_many_tokens"))
            order = sorted(range(len(ids)), key=lambda place: len(ids[place]))  # so that little is padded
            rows = [
                await self._ask(EmbedIds(tuple(piece), dimensions))
                for _, piece in _pieces([ids[place] for place in order], PIECE_TOKENS)
            ]
            return Embedded(np.concatenate(rows)[np.argsort(order)], tokens)

    async def aclose(self) -> None:
        """End the process."""
        await asyncio.to_thread(self._process.close)

    async def _read(self, inputs: Sequence[str | Ids]) -> list[Ids]:
        ids: list[Ids] = []
        for begin, piece in _pieces(inputs, PIECE_LETTERS):
            reply: InputIds = await self._ask(ReadInputs(tuple(piece)), begin)
            ids += reply.ids
        return ids

    async def _ask(self, message: object, begin: int = 0) -> Any:
        """The process's answer about inputs of which the first has the place `begin`."""
        reply = await self._process.ask(message)
        if isinstance(reply, Refusal):
            raise Refused(reply if reply.place is None else replace(reply, place=begin + reply.place))
        return reply

    @contextmanager
    def _counted(self, letters: int) -> Iterator[None]:
        if self._waiting and self._waiting + letters > MOST_LETTERS:
            raise Busy
        self._waiting += letters
        try:
            yield
        finally:
            self._waiting -= letters


def _pieces(items: Sequence[T], most: int) -> Iterator[tuple[int, list[T]]]:
    """Consecutive items (the first one's place, items) of `most` together, the longest's padding counted; one at
    least."""
    begin, longest = 0, 0
    for place, item in enumerate(items):
        longest = max(longest, len(item))
        if place > begin and (place - begin == PIECE or (place - begin + 1) * longest > most):
            yield begin, list(items[begin:place])
            begin, longest = place, len(item)
    yield begin, list(items[begin:])
