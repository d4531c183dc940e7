"""The pieces of one answer -> items that open, grow and close: one for its text, one for each call of a tool.

An API's vocabulary makes the items, and words each step as events of a stream; a reply that is not streamed passes the
events over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from server.api.tools.reading import CallPiece, Piece, TextPiece

T = TypeVar("T", bound=msgspec.Struct)


class Items(ABC, Generic[T]):
    """The items of one answer as they grow."""

    text_kind: type[msgspec.Struct]

    def __init__(self) -> None:
        self.done: list[T] = []
        self.open: T | None = None
        self._parts: list[str] = []  # of the open item's text or arguments so far

    def push(self, pieces: Sequence[Piece]) -> Iterator[msgspec.Struct]:
        """Add the next pieces."""
        for piece in pieces:
            if isinstance(piece, CallPiece):
                yield from self._begin(self.call(piece))
            elif isinstance(piece, TextPiece) and not isinstance(self.open, self.text_kind):
                yield from self._begin(self.text())
            part = piece.text if isinstance(piece, TextPiece) else piece.arguments
            self._parts.append(part)
            if self.open is not None:
                yield from self.grown(self.open, part)

    def finish(self, *, cut: bool = False) -> Iterator[msgspec.Struct]:
        """End the last item, which may be `cut` short; an answer without any is an empty text."""
        if self.open is None and not self.done:
            yield from self._begin(self.text())
        yield from self._close(cut)

    def all(self) -> list[T]:
        """The items so far, with the last as far as it has come."""
        return [*self.done, *(() if self.open is None else (self.whole(self.open, "".join(self._parts), True),))]

    def _begin(self, item: T) -> Iterator[msgspec.Struct]:
        yield from self._close(False)
        self.open = item
        yield from self.begun(item)

    def _close(self, cut: bool) -> Iterator[msgspec.Struct]:
        if self.open is not None:
            item = self.whole(self.open, "".join(self._parts), cut)
            yield from self.ended(item)
            self.done.append(item)
            self.open, self._parts = None, []

    @abstractmethod
    def text(self) -> T:
        """An item for text, empty."""

    @abstractmethod
    def call(self, call: CallPiece) -> T:
        """An item for a call, without its arguments."""

    @abstractmethod
    def whole(self, item: T, text: str, cut: bool) -> T:
        """An item with all of its text or arguments."""

    @abstractmethod
    def begun(self, item: T) -> Iterator[msgspec.Struct]:
        """Events that open an item."""

    @abstractmethod
    def grown(self, item: T, part: str) -> Iterator[msgspec.Struct]:
        """Events of a part of its text or arguments, which may be empty."""

    @abstractmethod
    def ended(self, item: T) -> Iterator[msgspec.Struct]:
        """Events that close an item."""
