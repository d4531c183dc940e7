"""What the APIs' wordings of answers share: the choices of OpenAI's completions, and the items of the newer APIs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import orjson

from engine.messages import RowUpdate
from scheduler.stream import Shortcut
from server.api.errors import ApiError, error_body
from server.api.input.schema import ChatBody, CompletionBody, StreamOptions
from server.api.output.call import Answer, Call, Part
from server.api.output.reading import CallPiece, Piece, PlainText, TextPiece
from server.api.output.reply import Metrics, Usage
from server.api.output.sse import EventStream, frame
from server.api.served_model import ServedModel

B = TypeVar("B", bound=ChatBody | CompletionBody)
T = TypeVar("T", bound=msgspec.Struct)


class ChoiceWords(ABC, Generic[B]):
    """Words each answer as a choice with an index, and ends streams with token counts where these are wanted."""

    end_marker, repeats = True, False
    shape: ClassVar[type[msgspec.Struct]]
    """The event of a stream."""
    object: ClassVar[str]
    """The `object` of that event."""

    def __init__(self, call: Call, body: B, model: ServedModel) -> None:
        self.call, self.body, self.model, self.text = call, body, model, model.text
        self._options = body.stream_options or StreamOptions()

    def opening(self) -> Iterable[msgspec.Struct]:
        return ()

    def events(self, parts: Sequence[Part]) -> Iterator[msgspec.Struct]:
        usage = self.call.usage() if self._options.continuous_usage_stats else None
        for part in parts:
            for choice in self.choices(part):
                yield self.reply(self.shape, [choice], usage, object=self.object)

    def closing(self) -> Iterator[msgspec.Struct]:
        if self._options.include_usage:
            yield self.reply(self.shape, [], self.call.usage(), self.call.metrics(), object=self.object)

    def failed(self, error: ApiError) -> msgspec.Struct:
        return error_body(error)

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        """Sends what only adds text; None where events tell more, or of several answers."""
        first, *others = self.call.answers
        plain = isinstance(first.reader, PlainText) and not self.call.scoring
        return None if others or not plain or self._options.continuous_usage_stats else TextFrames(self, stream).send

    def reply(
        self,
        shape: type[T],
        choices: Sequence[msgspec.Struct],
        usage: Usage | None = None,
        metrics: Metrics | None = None,
        **more: Any,
    ) -> T:
        """A body with some choices."""
        record, fingerprint = self.call.record, self.model.fingerprint
        common = {"id": record.id, "created": record.created, "model": record.model, "system_fingerprint": fingerprint}
        return shape(**common, **more, choices=choices, usage=usage, metrics=metrics)

    @abstractmethod
    def choices(self, part: Part) -> Iterable[msgspec.Struct]:
        """The choices of a stream's events for a part, each for an event of its own."""


MARK = "the text of an event, of which all others of its answer differ in nothing else"


class TextFrames:
    """Events that only add text to a call's only answer: the frame of the first one, each with another text in it."""

    def __init__(self, words: ChoiceWords[Any], stream: EventStream) -> None:
        self._answer: Answer = words.call.answers[0]
        self._words, self._stream = words, stream
        self._around: tuple[bytes, ...] = ()  # the bytes before and behind the text

    def send(self, update: RowUpdate) -> bool:
        """Send an update at once, as a Shortcut; False for an answer's first, and one that brings more than text."""
        if not update.text or not self._answer.begun or update.finish_reason is not None or update.logprobs:
            return False
        if not self._around:
            part = Part(self._answer, RowUpdate(update.row_id, text=MARK), [TextPiece(MARK)])
            self._around = tuple(frame(self._words.events([part])).split(orjson.dumps(MARK)))
        before, after = self._around
        if not self._stream.send_now(before + orjson.dumps(update.text) + after):
            return False
        self._answer.tokens += len(update.token_ids)
        return True


class ItemWords(ABC, Generic[T]):
    """Words a call's only answer as items that open, grow and close: one for its text, one for each call of a tool.

    An API's vocabulary makes the items and words each step as typed events, of which the last ends the stream; a reply
    that is not streamed passes the events over.
    """

    end_marker, repeats = False, True
    text_kind: ClassVar[type[msgspec.Struct]]

    def __init__(self) -> None:
        self.done: list[T] = []
        self.open: T | None = None
        self._parts: list[str] = []  # of the open item's text or arguments so far

    def events(self, parts: Sequence[Part]) -> Iterator[msgspec.Struct]:
        for part in parts:
            yield from self.part_events(part)

    def closing(self) -> Iterable[msgspec.Struct]:
        return ()

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        return None

    def push(self, pieces: Sequence[Piece]) -> Iterator[msgspec.Struct]:
        """Add the next pieces."""
        for piece in pieces:
            if isinstance(piece, CallPiece):
                yield from self._begin(self.call_item(piece))
            elif isinstance(piece, TextPiece) and not isinstance(self.open, self.text_kind):
                yield from self._begin(self.text_item())
            part = piece.text if isinstance(piece, TextPiece) else piece.arguments
            self._parts.append(part)
            if self.open is not None:
                yield from self.grown(self.open, part)

    def finish(self, *, cut: bool = False) -> Iterator[msgspec.Struct]:
        """End the last item, which may be `cut` short; an answer without any is an empty text."""
        if self.open is None and not self.done:
            yield from self._begin(self.text_item())
        yield from self._close(cut)

    def all(self) -> list[T]:
        """The items so far, with the last as far as it has come."""
        return [*self.done, *(() if self.open is None else (self.complete(self.open, "".join(self._parts), True),))]

    def _begin(self, item: T) -> Iterator[msgspec.Struct]:
        yield from self._close(False)
        self.open = item
        yield from self.begun(item)

    def _close(self, cut: bool) -> Iterator[msgspec.Struct]:
        if self.open is not None:
            item = self.complete(self.open, "".join(self._parts), cut)
            yield from self.ended(item)
            self.done.append(item)
            self.open, self._parts = None, []

    @abstractmethod
    def part_events(self, part: Part) -> Iterator[msgspec.Struct]:
        """Events of a part; those of the last part end the stream."""

    @abstractmethod
    def text_item(self) -> T:
        """An item for text, empty."""

    @abstractmethod
    def call_item(self, call: CallPiece) -> T:
        """An item for a call, without its arguments."""

    @abstractmethod
    def complete(self, item: T, text: str, cut: bool) -> T:
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
