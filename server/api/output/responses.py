"""OpenAI's responses, whole and as typed events."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal, TypeAlias

import msgspec
import orjson

from engine.messages import FinishReason, RowUpdate
from server.api.errors import ApiError, error_body
from server.api.input import responses as bodies
from server.api.input.schema import ChatBody
from server.api.output.answer import Item, ItemWords
from server.api.output.call import Call, Part
from server.api.output.reading import TextPiece, try_json
from server.api.output.reply import ChatLogprob, Metrics, chat_logprobs
from server.api.served_model import ServedModel

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


class ResponseWords(ItemWords):
    """Numbered events without [DONE]."""

    def __init__(
        self,
        call: Call,
        body: ChatBody,
        model: ServedModel,
        asked: bodies.ResponsesBody,
        keep: Callable[[ResponseObject], None] | None,
    ) -> None:
        """`body` is the chat for `asked`; `keep` gets the whole response."""
        super().__init__()
        self._call, self._body, self._model, self._keep = call, asked, model, keep
        self._custom = frozenset(tool.name for tool in asked.tools or () if tool.type == "custom")
        self._numbers = count()
        self._fresh: list[ChatLogprob] = []  # of the current part's text
        self._logprobs: list[ChatLogprob] = []

    def whole(self, answers: Sequence[Part]) -> ResponseObject:
        *_, last = self.events(answers[0])
        assert isinstance(last, ResponseEvent) and last.response is not msgspec.UNSET, "it ends each stream"
        return last.response

    def opening(self) -> Iterator[msgspec.Struct]:
        response = self._response("in_progress")
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def waiting(self) -> Sequence[msgspec.Struct]:
        return [self._event("in_progress", response=self._response("in_progress"))]

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        told = part.update.logprobs if bodies.wants_logprobs(self._body) else ()  # answers with tools have none
        self._fresh = list(chat_logprobs(told, self._model.text).content)
        self._logprobs += self._fresh
        yield from super().events(replace(part, pieces=part.pieces or [TextPiece("")]) if self._fresh else part)

    def begun(self, item: Item) -> Iterator[msgspec.Struct]:
        yield self._event("output_item.added", output_index=item.place, item=self._item(item))
        if item.call is None:
            yield self._of(item, "content_part.added", part=OutputText("", []))

    def grown(self, item: Item, part: str) -> Iterator[msgspec.Struct]:
        if item.call is None and (part or self._fresh):
            yield self._of(item, "output_text.delta", delta=part, logprobs=self._fresh)
        elif part and item.call is not None and item.call.name not in self._custom:
            yield self._of(item, "function_call_arguments.delta", delta=part)

    def ended(self, item: Item) -> Iterator[msgspec.Struct]:
        match whole := self._item(item):
            case OutputMessage(content=[part]):
                yield self._of(item, "output_text.done", text=part.text, logprobs=part.logprobs)
                yield self._of(item, "content_part.done", part=part)
            case CustomCallItem(input=text):
                yield self._of(item, "custom_tool_call_input.delta", delta=text)
                yield self._of(item, "custom_tool_call_input.done", input=text)
            case FunctionCallItem(name=name, arguments=arguments):
                yield self._of(item, "function_call_arguments.done", name=name, arguments=arguments)
        yield self._event("output_item.done", output_index=item.place, item=whole)

    def ending(self, update: RowUpdate) -> Iterator[msgspec.Struct]:
        cut = update.finish_reason is FinishReason.LENGTH
        details = IncompleteDetails("max_output_tokens") if cut else None
        status: Status = "incomplete" if cut else "completed"
        response = self._response(status, incomplete_details=details)
        if self._keep is not None:
            self._keep(response)
        yield self._event(status, response=response)

    def failed(self, error: ApiError) -> msgspec.Struct:
        """With the items at failure or cancellation."""
        if self.items and self.items[-1].status == "in_progress":
            self.items[-1].status = "incomplete"
        failure = ResponseFailure(error_body(error).error.code, error.message)
        status: Status = "cancelled" if self._call.record.cancelled else "failed"
        return self._event("failed", response=self._response(status, error=failure))

    def _item(self, item: Item) -> OutputItem:
        if (call := item.call) is None:
            content = [OutputText(item.text, self._logprobs)] if item.status != "in_progress" else []
            return OutputMessage(self._name(item), item.status, content)
        common: dict[str, Any] = {"id": self._name(item), "call_id": call.id, "name": call.name, "status": item.status}
        if call.name in self._custom:
            return CustomCallItem(input=_text_argument(item.text), **common)
        return FunctionCallItem(arguments=item.text, **common)

    def _name(self, item: Item) -> str:
        prefix = "msg_" if item.call is None else "ctc_" if item.call.name in self._custom else "fc_"
        return self._call.record.id.replace("resp_", prefix, 1) + (str(item.place) if item.place else "")

    def _of(self, item: Item, kind: str, **fields: Any) -> ResponseEvent:
        part = {"content_index": 0} if item.call is None else {}
        return self._event(kind, item_id=self._name(item), output_index=item.place, **part, **fields)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        return ResponseEvent(type=f"response.{kind}", sequence_number=next(self._numbers), **fields)

    def _response(self, status: Status, **ending: Any) -> ResponseObject:
        body, record, sampling = self._body, self._call.record, self._call.requests[0].sampling
        over = status != "in_progress"
        return ResponseObject(
            id=record.id,
            created_at=record.created,
            status=status,
            **{name: getattr(body, name) for name in ("instructions", "max_output_tokens", "previous_response_id")},
            metadata=body.metadata or {},
            model=record.model,
            output=[self._item(item) for item in self.items],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            store=body.store is not False,
            temperature=sampling.temperature,
            text=TextReply(_format(body)),
            tool_choice=body.tool_choice or "auto",
            tools=[_tool(tool) for _, tool in bodies.own_tools(body)],
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            usage=self._usage() if over else None,
            metrics=self._call.metrics() if over else None,
            **ending,
        )

    def _usage(self) -> ResponseUsage:
        usage = self._call.usage()
        cached = InputDetails(usage.prompt_tokens_details.cached_tokens)
        return ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached)


def _tool(tool: bodies.ResponseTool) -> dict[str, Any]:
    parameters = orjson.loads(bytes(tool.parameters)) if bytes(tool.parameters) else None
    told = {name: getattr(tool, name) for name in ("type", "name", "description", "strict")}
    return told | {"parameters": parameters}


def _format(body: bodies.ResponsesBody) -> FormatReply:
    asked = None if body.text is None else body.text.format
    if asked is None or asked.type != "json_schema":
        return FormatReply("text" if asked is None else asked.type)
    return FormatReply(asked.type, asked.name, orjson.loads(bytes(asked.schema)), asked.strict)


def _text_argument(arguments: str) -> str:
    """As far as it goes in a truncated call."""
    value = try_json(arguments)
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
