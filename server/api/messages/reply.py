"""The bodies of answers to POST /v1/messages, whole, as the typed events of a stream, and of errors: Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from server.api.errors import ApiError
from server.api.output.sse import NamedEvent

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


class MessageStart(NamedEvent, frozen=True, kw_only=True):
    """The first event: the message without content."""

    type: Literal["message_start"] = "message_start"
    message: MessageObject


class BlockStart(NamedEvent, frozen=True, kw_only=True):
    """A block begins, empty."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: ContentBlock


class BlockText(msgspec.Struct, frozen=True, tag="text_delta"):
    """More of a text."""

    text: str


class BlockInput(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """More of the JSON of a call's input."""

    partial_json: str


class BlockDelta(NamedEvent, frozen=True, kw_only=True):
    """More of the block that has begun."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: BlockText | BlockInput


class BlockStop(NamedEvent, frozen=True, kw_only=True):
    """A block is whole."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(NamedEvent, frozen=True, kw_only=True):
    """The message's end, and all its tokens."""

    type: Literal["message_delta"] = "message_delta"
    delta: Ending
    usage: MessageUsage


class MessageStop(NamedEvent, frozen=True, kw_only=True):
    """The last event."""

    type: Literal["message_stop"] = "message_stop"


class MessageErrorDetail(msgspec.Struct, frozen=True):
    """An error: its kind, and the message."""

    type: str
    message: str


class MessageError(NamedEvent, frozen=True, kw_only=True):
    """An error, as a body or as the last event of a stream."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
    request_id: str


EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessageError)
"""Kinds of events of a stream."""

_ERROR_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)
"""Statuses -> Anthropic's name of the error; any other is the request's below 500, and the server's from there on."""


def message_error(error: ApiError, request_id: str) -> MessageError:
    """An error in Anthropic's form."""
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return MessageError(error=MessageErrorDetail(kind, error.message), request_id=request_id)
