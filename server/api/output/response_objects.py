"""OpenAI's responses and the events of their streams."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import orjson

from server.api.input import responses as bodies
from server.api.output.reply import ChatLogprob, Metrics

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True):
    """A piece of text; `annotations` are always empty."""

    text: str
    logprobs: Sequence[ChatLogprob]
    annotations: list[str] = []
    type: str = "output_text"


class OutputMessage(msgspec.Struct, frozen=True, tag="message"):
    """The assistant's turn; no content before its first token."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: str = "assistant"


class CalledItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool. Its result names it by `call_id`."""

    id: str
    call_id: str
    name: str
    status: ItemStatus


class FunctionCallItem(CalledItem, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; its arguments are JSON."""

    arguments: str


class CustomCallItem(CalledItem, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool with its text."""

    input: str

    @property
    def arguments(self) -> str:
        """Its text as the arguments of a function."""
        return orjson.dumps({"input": self.input}).decode()


OutputItem: TypeAlias = OutputMessage | FunctionCallItem | CustomCallItem


class InputDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that were kept from earlier ones, and so were not read again; none are kept on demand."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Reasoning tokens are not counted separately."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens read and made."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why there is no whole answer."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the answer ends before its end."""

    reason: str


class FormatReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form that was asked of the text."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextReply(msgspec.Struct, frozen=True):
    """How the text had to look."""

    format: FormatReply


class DeletedResponse(msgspec.Struct, frozen=True):
    """A response that is kept no longer."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response: OpenAI's object, what is not supported at its default, and where the time went."""

    id: str
    object: str = "response"
    created_at: int
    status: Status
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextReply
    tool_choice: str | bodies.NamedFunctionChoice
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None
    metrics: Metrics | None


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream: its kind, its place, and the fields that this kind has.

    `response` is in response.created, .in_progress, .completed, .incomplete and .failed, `item` in
    response.output_item.added and .done, `part` in response.content_part.added and .done, `delta` in what lets an item
    grow, and its whole text, arguments or input in the .done of that. A custom tool's input comes in one delta.
    """

    type: str
    sequence_number: int
    response: ResponseObject | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    item: OutputItem | msgspec.UnsetType = msgspec.UNSET
    part: OutputText | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: Sequence[ChatLogprob] | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    input: str | msgspec.UnsetType = msgspec.UNSET
