"""The pieces of one answer -> the items of a response: a message for its text, an item for each call of a function.

Its words for the steps of server/api/output/items.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import TypedDict

import msgspec
import orjson

from server.api.input.schema import Message, PastCall, PastFunction
from server.api.output.items import Items
from server.api.output.reply import ChatLogprob
from server.api.responses import reply
from server.api.responses.body import text_arguments
from server.api.tools.reading import CallPiece, Piece, TextPiece


class EventPlace(TypedDict):
    """The fields that all events about the growth of an item share."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int


class OutputItems(Items[reply.OutputItem]):
    """The items of one response, and the numbers of its events."""

    text_kind = reply.OutputMessage

    def __init__(self, response_id: str, custom: Collection[str] = ()) -> None:
        """`custom` are the names of custom tools."""
        super().__init__()
        self.numbers = count()
        self._response_id, self._custom = response_id, custom
        self._fresh: Sequence[ChatLogprob] = ()
        self._logprobs: list[ChatLogprob] = []

    def say(self, pieces: Sequence[Piece], logprobs: Sequence[ChatLogprob]) -> Iterator[msgspec.Struct]:
        """Add the next pieces; log-probabilities, which only answers without tools have, are those of the text."""
        self._fresh = logprobs
        self._logprobs.extend(logprobs)
        yield from self.push(pieces or ([TextPiece("")] if logprobs else []))

    def text(self) -> reply.OutputItem:
        return reply.OutputMessage(self._name("msg"), "in_progress", [])

    def call(self, call: CallPiece) -> reply.OutputItem:
        if call.name in self._custom:
            return reply.CustomCallItem(
                id=self._name("ctc"), call_id=call.id, name=call.name, input="", status="in_progress"
            )
        return reply.FunctionCallItem(
            id=self._name("fc"), call_id=call.id, name=call.name, arguments="", status="in_progress"
        )

    def whole(self, item: reply.OutputItem, text: str, cut: bool) -> reply.OutputItem:
        status = "incomplete" if cut else "completed"
        if isinstance(item, reply.OutputMessage):
            return msgspec.structs.replace(item, status=status, content=[reply.OutputText(text, list(self._logprobs))])
        if isinstance(item, reply.CustomCallItem):
            return msgspec.structs.replace(item, status=status, input=_text_argument(text))
        return msgspec.structs.replace(item, status=status, arguments=text)

    def begun(self, item: reply.OutputItem) -> Iterator[msgspec.Struct]:
        yield self._item("response.output_item.added", item)
        if isinstance(item, reply.OutputMessage):
            yield self._part("response.content_part.added", reply.OutputText("", []))

    def grown(self, item: reply.OutputItem, part: str) -> Iterator[msgspec.Struct]:
        if isinstance(item, reply.OutputMessage) and (part or self._fresh):
            kind = "response.output_text.delta"
            yield reply.TextDelta(**self._place(kind), delta=part, logprobs=list(self._fresh))
        elif part and isinstance(item, reply.FunctionCallItem):
            yield reply.ArgumentsDelta(**self._place("response.function_call_arguments.delta"), delta=part)

    def ended(self, item: reply.OutputItem) -> Iterator[msgspec.Struct]:
        """The events that tell an item as a whole, and the one that ends it."""
        if isinstance(item, reply.OutputMessage):
            (part,) = item.content
            yield reply.TextDone(**self._place("response.output_text.done"), text=part.text, logprobs=part.logprobs)
            yield self._part("response.content_part.done", part)
        elif isinstance(item, reply.CustomCallItem):
            yield reply.InputDelta(**self._place("response.custom_tool_call_input.delta"), delta=item.input)
            yield reply.InputDone(**self._place("response.custom_tool_call_input.done"), input=item.input)
        else:
            kind = "response.function_call_arguments.done"
            yield reply.ArgumentsDone(**self._place(kind), name=item.name, arguments=item.arguments)
        yield self._item("response.output_item.done", item)

    def _name(self, prefix: str) -> str:
        """An id for the next item; the first has the response's own digits."""
        name, place = self._response_id.replace("resp_", f"{prefix}_", 1), len(self.done) + (self.open is not None)
        return f"{name}{place}" if place else name

    def _item(self, kind: str, item: reply.OutputItem) -> reply.ItemEvent:
        return reply.ItemEvent(type=kind, sequence_number=next(self.numbers), output_index=len(self.done), item=item)

    def _part(self, kind: str, part: reply.OutputText) -> reply.PartEvent:
        return reply.PartEvent(**self._place(kind), part=part)

    def _place(self, kind: str) -> EventPlace:
        """The next event's kind and number in the stream, and the open item's id and place in the response."""
        item_id = "" if self.open is None else self.open.id
        return EventPlace(type=kind, sequence_number=next(self.numbers), item_id=item_id, output_index=len(self.done))


def said_in(items: Sequence[reply.OutputItem]) -> Message:
    """An answer as a turn of a chat."""
    texts = [part.text for item in items if isinstance(item, reply.OutputMessage) for part in item.content]
    calls = [
        PastCall(PastFunction(item.name, _arguments_of(item)), item.call_id)
        for item in items
        if not isinstance(item, reply.OutputMessage)
    ]
    return Message("assistant", "".join(texts), tool_calls=calls or None)


def _arguments_of(item: reply.FunctionCallItem | reply.CustomCallItem) -> str:
    return item.arguments if isinstance(item, reply.FunctionCallItem) else text_arguments(item.input)


def _text_argument(arguments: str) -> str:
    """The text in the arguments of a custom tool; of a call that was cut short, as much as there is."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
