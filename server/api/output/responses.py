"""OpenAI's responses, whole and as typed events."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import orjson

from engine.messages import FinishReason, RowUpdate
from server.api.errors import ApiError, error_body
from server.api.input import responses as bodies
from server.api.input.schema import ChatBody
from server.api.output import response_objects as replies
from server.api.output.answer import Item, ItemWords
from server.api.output.call import Call, Part
from server.api.output.reading import try_json
from server.api.output.reply import ChatLogprob, chat_logprobs
from server.api.served_model import ServedModel

Keep = Callable[[replies.ResponseObject], None]


class ResponseWords(ItemWords):
    """Numbered events without [DONE]."""

    def __init__(
        self, call: Call, body: ChatBody, model: ServedModel, asked: bodies.ResponsesBody, keep: Keep | None
    ) -> None:
        """`body` is the chat for `asked`; `keep` gets the whole response."""
        super().__init__(call, body, model)
        self._body, self._keep = asked, keep
        self._custom = frozenset(tool.name for tool in asked.tools or () if tool.type == "custom")
        self._numbers = count()
        self._fresh: list[ChatLogprob] = []  # of the current part's text
        self._logprobs: list[ChatLogprob] = []

    def whole(self, answers: Sequence[Part]) -> replies.ResponseObject:
        *_, last = self.events(answers[0])
        assert isinstance(last, replies.ResponseEvent) and last.response is not msgspec.UNSET, "it ends each stream"
        return last.response

    def opening(self) -> Iterator[msgspec.Struct]:
        response = self._response("in_progress")
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def waiting(self) -> Sequence[msgspec.Struct]:
        return [self._event("in_progress", response=self._response("in_progress"))]

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        told = part.update.logprobs if bodies.wants_logprobs(self._body) else ()  # answers with tools have none
        self._fresh = list(chat_logprobs(told, self.model.text).content)
        self._logprobs += self._fresh
        yield from super().events(replace(part, pieces=part.pieces or [""]) if self._fresh else part)

    def begun(self, item: Item) -> Iterator[msgspec.Struct]:
        yield self._event("output_item.added", output_index=item.place, item=self._item(item))
        if item.call is None:
            yield self._of(item, "content_part.added", part=replies.OutputText("", []))

    def grown(self, item: Item, part: str) -> Iterator[msgspec.Struct]:
        if item.call is None and (part or self._fresh):
            yield self._of(item, "output_text.delta", delta=part, logprobs=self._fresh)
        elif part and item.call is not None and item.call.name not in self._custom:
            yield self._of(item, "function_call_arguments.delta", delta=part)

    def ended(self, item: Item) -> Iterator[msgspec.Struct]:
        match whole := self._item(item):
            case replies.OutputMessage(content=[part]):
                yield self._of(item, "output_text.done", text=part.text, logprobs=part.logprobs)
                yield self._of(item, "content_part.done", part=part)
            case replies.CustomCallItem(input=text):
                yield self._of(item, "custom_tool_call_input.delta", delta=text)
                yield self._of(item, "custom_tool_call_input.done", input=text)
            case replies.FunctionCallItem(name=name, arguments=arguments):
                yield self._of(item, "function_call_arguments.done", name=name, arguments=arguments)
        yield self._event("output_item.done", output_index=item.place, item=whole)

    def ending(self, update: RowUpdate) -> Iterator[msgspec.Struct]:
        cut = update.finish_reason is FinishReason.LENGTH
        details = replies.IncompleteDetails("max_output_tokens") if cut else None
        status: replies.Status = "incomplete" if cut else "completed"
        response = self._response(status, incomplete_details=details)
        if self._keep is not None:
            self._keep(response)
        yield self._event(status, response=response)

    def failed(self, error: ApiError) -> msgspec.Struct:
        """With the items at failure or cancellation."""
        if self.items and self.items[-1].status == "in_progress":
            self.items[-1].status = "incomplete"
        failure = replies.ResponseFailure(error_body(error).error.code, error.message)
        status: replies.Status = "cancelled" if self.call.record.cancelled else "failed"
        return self._event("failed", response=self._response(status, error=failure))

    def _item(self, item: Item) -> replies.OutputItem:
        if (call := item.call) is None:
            content = [replies.OutputText(item.text, self._logprobs)] if item.status != "in_progress" else []
            return replies.OutputMessage(self._name(item), item.status, content)
        common: dict[str, Any] = {"id": self._name(item), "call_id": call.id, "name": call.name, "status": item.status}
        if call.name in self._custom:
            return replies.CustomCallItem(input=_text_argument(item.text), **common)
        return replies.FunctionCallItem(arguments=item.text, **common)

    def _name(self, item: Item) -> str:
        prefix = "msg_" if item.call is None else "ctc_" if item.call.name in self._custom else "fc_"
        return self.call.record.id.replace("resp_", prefix, 1) + (str(item.place) if item.place else "")

    def _of(self, item: Item, kind: str, **fields: Any) -> replies.ResponseEvent:
        part = {"content_index": 0} if item.call is None else {}
        return self._event(kind, item_id=self._name(item), output_index=item.place, **part, **fields)

    def _event(self, kind: str, **fields: Any) -> replies.ResponseEvent:
        return replies.ResponseEvent(type=f"response.{kind}", sequence_number=next(self._numbers), **fields)

    def _response(self, status: replies.Status, **ending: Any) -> replies.ResponseObject:
        body, record, sampling = self._body, self.call.record, self.call.requests[0].sampling
        over = status != "in_progress"
        return replies.ResponseObject(
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
            text=replies.TextReply(_format(body)),
            tool_choice=body.tool_choice or "auto",
            tools=[_tool(tool) for _, tool in bodies.own_tools(body)],
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            usage=self._usage() if over else None,
            metrics=self.call.metrics() if over else None,
            **ending,
        )

    def _usage(self) -> replies.ResponseUsage:
        usage = self.call.usage()
        cached = replies.InputDetails(usage.prompt_tokens_details.cached_tokens)
        return replies.ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached)


def _tool(tool: bodies.ResponseTool) -> dict[str, Any]:
    parameters = orjson.loads(bytes(tool.parameters)) if bytes(tool.parameters) else None
    told = {name: getattr(tool, name) for name in ("type", "name", "description", "strict")}
    return told | {"parameters": parameters}


def _format(body: bodies.ResponsesBody) -> replies.FormatReply:
    asked = None if body.text is None else body.text.format
    if asked is None or asked.type != "json_schema":
        return replies.FormatReply("text" if asked is None else asked.type)
    return replies.FormatReply(asked.type, asked.name, orjson.loads(bytes(asked.schema)), asked.strict)


def _text_argument(arguments: str) -> str:
    """As far as it goes in a truncated call."""
    value = try_json(arguments)
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
