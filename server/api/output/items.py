"""What the newer APIs have in common: an answer is items, texts and calls, that open, grow and close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from engine.messages import FinishReason, RowUpdate
from server.api.output.answer import Words
from server.api.output.call import Part
from server.api.output.reading import CallPiece


@dataclass(slots=True)
class Item:
    """A text, or a call of a tool, as far as it has come."""

    place: int
    call: CallPiece | None
    """The first piece of a call; None for a text."""
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    parts: list[str] = field(default_factory=list)
    """Of its text, or of the call's arguments."""

    @property
    def text(self) -> str:
        """What it says so far, or the call's arguments."""
        return "".join(self.parts)


class ItemWords(Words):
    """Words a call's only answer. An API's vocabulary words each step of an item as typed events, of which the last
    ends the stream; a reply that is not streamed passes the events over."""

    end_marker = False

    def __init__(self) -> None:
        self.items: list[Item] = []

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        for piece in part.pieces:
            if isinstance(piece, CallPiece):
                if piece.id:
                    yield from self._begin(piece)
                text = piece.arguments
            else:
                if not self.items or self.items[-1].call is not None:
                    yield from self._begin(None)
                text = piece.text
            self.items[-1].parts.append(text)
            yield from self.grown(self.items[-1], text)
        if part.update.finish_reason is None:
            return
        if not self.items:  # an answer without any is an empty text
            yield from self._begin(None)
        yield from self._close("incomplete" if part.update.finish_reason is FinishReason.LENGTH else "completed")
        yield from self.ending(part.update)

    def _begin(self, call: CallPiece | None) -> Iterator[msgspec.Struct]:
        if self.items:
            yield from self._close("completed")
        self.items.append(Item(len(self.items), call))
        yield from self.begun(self.items[-1])

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[msgspec.Struct]:
        self.items[-1].status = status
        yield from self.ended(self.items[-1])

    @abstractmethod
    def begun(self, item: Item) -> Iterable[msgspec.Struct]:
        """Events that open an item."""

    @abstractmethod
    def grown(self, item: Item, part: str) -> Iterable[msgspec.Struct]:
        """Events of a part of its text or arguments, which may be empty."""

    @abstractmethod
    def ended(self, item: Item) -> Iterable[msgspec.Struct]:
        """Events that close an item."""

    @abstractmethod
    def ending(self, update: RowUpdate) -> Iterable[msgspec.Struct]:
        """Events that end the stream, behind all items; the update is the answer's last."""
