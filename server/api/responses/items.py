"""The pieces of one answer -> the items of a response: a message for its text, an item for each call of a function.

Each step is told as the events of a stream; a response that is not streamed passes them over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypedDict

import msgspec
import orjson

from server.api.input.schema import Message, PastCall, PastFunction
from server.api.output.reply import ChatLogprob
from server.api.responses.body import text_arguments
from server.api.responses.reply import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomCallItem,
    FunctionCallItem,
    InputDelta,
    InputDone,
    ItemEvent,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    TextDelta,
    TextDone,
)
from server.api.tools.reading import ArgumentsPiece, CallPiece, Piece, TextPiece


class EventPlace(TypedDict):
    """The fields that all events about the growth of an item share."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int


@dataclass(slots=True)
class OutputItems:
    """The items of one response as they grow."""

    response_id: str
    custom: Collection[str] = ()
    """Names of custom tools."""
    done: list[OutputItem] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    """Numbers the events of the stream."""
    _open: OutputItem | None = None
    """The item that grows, without what it has grown by."""
    _parts: list[str] = field(default_factory=list)
    """Pieces of the open item's text or arguments so far."""
    _logprobs: list[ChatLogprob] = field(default_factory=list)

    def push(self, pieces: Sequence[Piece], logprobs: Sequence[ChatLogprob]) -> Iterator[msgspec.Struct]:
        """Add the next pieces; log-probabilities, which only answers without tools have, are those of the text."""
        for piece in pieces or ([TextPiece("")] if logprobs else []):
            match piece:
                case TextPiece(text):
                    yield from self._say(text, logprobs)
                case CallPiece(arguments=arguments):
                    yield from self._call(piece)
                    yield from self._argue(arguments)
                case ArgumentsPiece(arguments=arguments):
                    yield from self._argue(arguments)

    def finish(self, status: ItemStatus) -> Iterator[msgspec.Struct]:
        """End the last item; an answer without any is an empty message."""
        if self._open is None and not self.done:
            yield from self._say("", ())
        yield from self._close(status)

    def all(self, status: ItemStatus) -> list[OutputItem]:
        """The items so far, with the last in the state that it was left in."""
        return [*self.done, *(() if self._open is None else (self._whole(self._open, status),))]

    def _say(self, text: str, logprobs: Sequence[ChatLogprob]) -> Iterator[msgspec.Struct]:
        if not isinstance(self._open, OutputMessage):
            item = OutputMessage(self._name("msg"), "in_progress", [])
            yield from self._begin(item)
            yield self._part("response.content_part.added", OutputText("", []))
        self._parts.append(text)
        self._logprobs.extend(logprobs)
        if text or logprobs:
            kind = "response.output_text.delta"
            yield TextDelta(**self._place(kind), delta=text, logprobs=list(logprobs))

    def _call(self, call: CallPiece) -> Iterator[msgspec.Struct]:
        if call.name in self.custom:
            yield from self._begin(
                CustomCallItem(id=self._name("ctc"), call_id=call.id, name=call.name, input="", status="in_progress")
            )
        else:
            yield from self._begin(
                FunctionCallItem(
                    id=self._name("fc"), call_id=call.id, name=call.name, arguments="", status="in_progress"
                )
            )

    def _argue(self, arguments: str) -> Iterator[msgspec.Struct]:
        self._parts.append(arguments)
        if arguments and not isinstance(self._open, CustomCallItem):
            kind = "response.function_call_arguments.delta"
            yield ArgumentsDelta(**self._place(kind), delta=arguments)

    def _begin(self, item: OutputItem) -> Iterator[msgspec.Struct]:
        yield from self._close("completed")
        self._open = item
        yield self._item("response.output_item.added", item)

    def _close(self, status: ItemStatus) -> Iterator[msgspec.Struct]:
        if self._open is None:
            return
        item = self._whole(self._open, status)
        yield from self._closing(item)
        yield self._item("response.output_item.done", item)
        self.done.append(item)
        self._open, self._parts, self._logprobs = None, [], []

    def _closing(self, item: OutputItem) -> Iterator[msgspec.Struct]:
        """The events that tell an item as a whole, before the one that ends it."""
        if isinstance(item, OutputMessage):
            (part,) = item.content
            kind = "response.output_text.done"
            yield TextDone(**self._place(kind), text=part.text, logprobs=part.logprobs)
            yield self._part("response.content_part.done", part)
        elif isinstance(item, CustomCallItem):
            yield InputDelta(**self._place("response.custom_tool_call_input.delta"), delta=item.input)
            yield InputDone(**self._place("response.custom_tool_call_input.done"), input=item.input)
        else:
            kind = "response.function_call_arguments.done"
            yield ArgumentsDone(**self._place(kind), name=item.name, arguments=item.arguments)

    def _whole(self, item: OutputItem, status: ItemStatus) -> OutputItem:
        text = "".join(self._parts)
        if isinstance(item, OutputMessage):
            return msgspec.structs.replace(item, status=status, content=[OutputText(text, list(self._logprobs))])
        if isinstance(item, CustomCallItem):
            return msgspec.structs.replace(item, status=status, input=_text_argument(text))
        return msgspec.structs.replace(item, status=status, arguments=text)

    def _name(self, prefix: str) -> str:
        """An id for the next item; the first message has the response's own digits."""
        name = self.response_id.replace("resp_", f"{prefix}_", 1)
        return f"{name}{len(self.done) + (self._open is not None)}" if self.done or self._open else name

    def _item(self, kind: str, item: OutputItem) -> ItemEvent:
        return ItemEvent(type=kind, sequence_number=next(self.numbers), output_index=len(self.done), item=item)

    def _part(self, kind: str, part: OutputText) -> PartEvent:
        return PartEvent(**self._place(kind), part=part)

    def _place(self, kind: str) -> EventPlace:
        """The next event's kind and number in the stream, and the open item's id and place in the response."""
        item_id = "" if self._open is None else self._open.id
        return EventPlace(type=kind, sequence_number=next(self.numbers), item_id=item_id, output_index=len(self.done))


def said_in(items: Sequence[OutputItem]) -> Message:
    """An answer as a turn of a chat."""
    texts = [part.text for item in items if isinstance(item, OutputMessage) for part in item.content]
    calls = [
        PastCall(PastFunction(item.name, _arguments_of(item)), item.call_id)
        for item in items
        if not isinstance(item, OutputMessage)
    ]
    return Message("assistant", "".join(texts), tool_calls=calls or None)


def _arguments_of(item: FunctionCallItem | CustomCallItem) -> str:
    return item.arguments if isinstance(item, FunctionCallItem) else text_arguments(item.input)


def _text_argument(arguments: str) -> str:
    """The text in the arguments of a custom tool; of a call that was cut short, as much as there is."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
