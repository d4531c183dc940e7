"""Anthropic's messages, whole and streamed, and its errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import orjson

from engine.messages import REPETITION, FinishReason, RowUpdate
from server.api.errors import ApiError
from server.api.output.answer import Item, ItemWords
from server.api.output.call import Part
from server.api.output.reading import complete

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = TextBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens read and made; those of the prompt that were kept from earlier ones are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageObject(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's turn."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True):
    """Tokens of a prompt."""

    input_tokens: int


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream: its kind, and the fields that this kind has.

    `message` is in message_start, `index` in all of content_block_start, _delta and _stop, `content_block` and `delta`
    in those of a block, and `delta` and `usage` in message_delta, the message's end.
    """

    type: str
    message: MessageObject | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    content_block: ContentBlock | msgspec.UnsetType = msgspec.UNSET
    delta: Mapping[str, str | None] | msgspec.UnsetType = msgspec.UNSET
    usage: MessageUsage | msgspec.UnsetType = msgspec.UNSET


class MessageErrorDetail(msgspec.Struct, frozen=True):
    """An error: its kind, and the message."""

    type: str
    message: str


class MessageError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error, as a body or as the last event of a stream."""

    error: MessageErrorDetail
    request_id: str


_ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}  # others by class: the request's below 500, else the server's


def message_error(error: ApiError, request_id: str) -> MessageError:
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return MessageError(error=MessageErrorDetail(kind, error.message), request_id=request_id)


class MessageWords(ItemWords):
    """A block for the text and each call; the last event ends a stream, without [DONE]."""

    def whole(self, answers: Sequence[Part]) -> MessageObject:
        for _ in self.events(answers[0]):
            pass
        return self._message([_block(item) for item in self.items], *self._ending(answers[0].update))

    def opening(self) -> Iterator[msgspec.Struct]:
        yield MessageEvent(type="message_start", message=self._message([], None, None))

    def waiting(self) -> Sequence[msgspec.Struct]:
        return [MessageEvent(type="ping")]

    def begun(self, item: Item) -> Iterator[msgspec.Struct]:
        yield MessageEvent(type="content_block_start", index=item.place, content_block=_block(item))

    def grown(self, item: Item, part: str) -> Iterator[msgspec.Struct]:
        if part:
            of_text, of_call = {"type": "text_delta", "text": part}, {"type": "input_json_delta", "partial_json": part}
            delta = of_text if item.call is None else of_call
            yield MessageEvent(type="content_block_delta", index=item.place, delta=delta)

    def ended(self, item: Item) -> Iterator[msgspec.Struct]:
        yield MessageEvent(type="content_block_stop", index=item.place)

    def ending(self, update: RowUpdate) -> Iterator[msgspec.Struct]:
        reason, sequence = self._ending(update)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield MessageEvent(type="message_delta", delta=delta, usage=self._usage())
        yield MessageEvent(type="message_stop")

    def failed(self, error: ApiError) -> msgspec.Struct:
        return message_error(error, self.call.record.request_id)

    def _usage(self) -> MessageUsage:
        usage = self.call.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)

    def _ending(self, update: RowUpdate) -> tuple[StopReason, str | None]:
        sequence = update.stop_reason
        if update.finish_reason is FinishReason.LENGTH:
            return "max_tokens", None
        if self.call.answers[0].reader.calls:
            return "tool_use", None
        if isinstance(sequence, str) and sequence != REPETITION:
            return "stop_sequence", sequence
        return "end_turn", None

    def _message(self, content: list[ContentBlock], reason: StopReason | None, sequence: str | None) -> MessageObject:
        record, usage = self.call.record, self._usage()
        return MessageObject(
            id=record.id, model=record.model, content=content, stop_reason=reason, stop_sequence=sequence, usage=usage
        )


def _block(item: Item) -> ContentBlock:
    if item.call is None:
        return TextBlock(item.text)
    given: Any = orjson.Fragment(complete(item.text))  # raw: numbers of any length
    return ToolUseBlock(item.call.id.replace("call_", "toolu_", 1), item.call.name, given)
