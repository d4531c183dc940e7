"""POST /v1/responses: a conversation in, text and calls of functions out, as OpenAI's responses; and those that are
kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import msgspec
import orjson
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.errors import ApiError, error_body, reword_errors
from server.api.input import responses as bodies
from server.api.input.body import read_call
from server.api.input.prompts import chat_prompt
from server.api.input.schema import ChatBody, Message, PastCall, PastFunction
from server.api.output import response as replies
from server.api.output.answer import respond
from server.api.output.call import Call, Part
from server.api.output.items import Item, ItemWords
from server.api.output.reading import TextPiece, try_json
from server.api.output.reply import ChatLogprob, chat_logprobs, encode, json_response
from server.api.served_model import MODEL, ServedModel
from server.http.access import holder_of


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with text and calls of functions, as OpenAI's responses do."""
    body, record = await read_call(request, bodies.ResponsesBody, "resp_")
    chat, spoken = await read_chat(request, body)
    model, keep = request.app[MODEL], None
    if body.store is not False:
        keep = partial(request.app[STORE].add, holder_of(request), spoken)
    with reword_errors(bodies.OWN_NAMES, bodies.OWN_WORDS):
        prompt = await chat_prompt(chat, model)
        return await respond(request, record, chat, [prompt], lambda call: ResponseWords(call, body, model, keep))


async def read_chat(request: web.Request, body: bodies.ResponsesBody) -> tuple[ChatBody, tuple[Message, ...]]:
    """The chat that a body asks for, and its conversation, the turns before `previous_response_id` included.

    Raises ApiError 400, 404.
    """
    earlier: tuple[Message, ...] = ()
    if (name := body.previous_response_id) is not None:
        earlier = request.app[STORE].find(name, holder_of(request), "previous_response_id").messages

    def read() -> tuple[ChatBody, tuple[Message, ...]]:
        spoken = (*earlier, *bodies.conversation(body))
        return bodies.as_chat(body, spoken), spoken

    return await request.app[MODEL].run_in_thread(read)


async def show_response(request: web.Request) -> web.Response:
    """Show a response that is kept; raises ApiError 404."""
    return json_response(request.app[STORE].find(request.match_info["id"], holder_of(request), "id").reply)


async def delete_response(request: web.Request) -> web.Response:
    """Forget a response that is kept; raises ApiError 404."""
    name = request.match_info["id"]
    request.app[STORE].remove(name, holder_of(request))
    return json_response(replies.DeletedResponse(name))


class ResponseWords(ItemWords):
    """Words one answer as OpenAI's responses: typed, numbered events, without a [DONE]."""

    def __init__(
        self,
        call: Call,
        body: bodies.ResponsesBody,
        model: ServedModel,
        keep: Callable[[replies.ResponseObject], None] | None,
    ) -> None:
        """`keep` is given the response once it is whole."""
        super().__init__()
        self._call, self._body, self._model, self._keep = call, body, model, keep
        self._custom = frozenset(tool.name for tool in body.tools or () if tool.type == "custom")
        self._numbers = count()  # of events
        self._fresh: list[ChatLogprob] = []  # of the text of the part that is being worded
        self._logprobs: list[ChatLogprob] = []

    def whole(self, answers: Sequence[Part]) -> replies.ResponseObject:
        *_, last = self.events(answers[0])
        assert isinstance(last, replies.ResponseEvent) and last.response is not msgspec.UNSET, "it ends each stream"
        return last.response

    def opening(self) -> Iterator[msgspec.Struct]:
        response = self._response("in_progress")
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        told = part.update.logprobs if bodies.wants_logprobs(self._body) else ()  # only answers without tools have any
        self._fresh = list(chat_logprobs(told, self._model.text).content)
        self._logprobs += self._fresh
        yield from super().events(replace(part, pieces=part.pieces or [TextPiece("")]) if self._fresh else part)

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
        """The events that tell an item as a whole, and the one that ends it."""
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
        """The last event, with the items that there were when the answer failed, or was broken off."""
        if self.items and self.items[-1].status == "in_progress":
            self.items[-1].status = "incomplete"
        failure = replies.ResponseFailure(error_body(error).error.code, error.message)
        status: replies.Status = "cancelled" if self._call.record.cancelled else "failed"
        return self._event("failed", response=self._response(status, error=failure))

    def _item(self, item: Item) -> replies.OutputItem:
        """An item as far as it has come."""
        if item.call is None:
            content = [replies.OutputText(item.text, self._logprobs)] if item.status != "in_progress" else []
            return replies.OutputMessage(self._name(item), item.status, content)
        common: dict[str, Any] = {
            "id": self._name(item),
            "call_id": item.call.id,
            "name": item.call.name,
            "status": item.status,
        }
        if item.call.name in self._custom:
            return replies.CustomCallItem(input=_text_argument(item.text), **common)
        return replies.FunctionCallItem(arguments=item.text, **common)

    def _name(self, item: Item) -> str:
        """An item's id; the first has the response's own digits."""
        prefix = "msg_" if item.call is None else "ctc_" if item.call.name in self._custom else "fc_"
        return self._call.record.id.replace("resp_", prefix, 1) + (str(item.place) if item.place else "")

    def _of(self, item: Item, kind: str, **fields: Any) -> replies.ResponseEvent:
        """The next event, about an item, or the one part of a message."""
        part = {"content_index": 0} if item.call is None else {}
        return self._event(kind, item_id=self._name(item), output_index=item.place, **part, **fields)

    def _event(self, kind: str, **fields: Any) -> replies.ResponseEvent:
        """The next event of the stream."""
        return replies.ResponseEvent(type=f"response.{kind}", sequence_number=next(self._numbers), **fields)

    def _response(self, status: replies.Status, **ending: Any) -> replies.ResponseObject:
        body, record, sampling = self._body, self._call.record, self._call.requests[0].sampling
        over = status != "in_progress"
        return replies.ResponseObject(
            id=record.id,
            created_at=record.created,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=record.model,
            output=[self._item(item) for item in self.items],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            store=body.store is not False,
            temperature=sampling.temperature,
            text=replies.TextReply(_format(body)),
            tool_choice=body.tool_choice or "auto",
            tools=[_tool(tool) for _, tool in bodies.own_tools(body)],
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            usage=self._usage() if over else None,
            metrics=self._call.metrics() if over else None,
            **ending,
        )

    def _usage(self) -> replies.ResponseUsage:
        usage = self._call.usage()
        cached = replies.InputDetails(usage.prompt_tokens_details.cached_tokens)
        return replies.ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached)


def _tool(tool: bodies.ResponseTool) -> dict[str, Any]:
    """A tool as it was given."""
    parameters = orjson.loads(bytes(tool.parameters)) if bytes(tool.parameters) else None
    told = {name: getattr(tool, name) for name in ("type", "name", "description", "strict")}
    return told | {"parameters": parameters}


def _format(body: bodies.ResponsesBody) -> replies.FormatReply:
    asked = None if body.text is None else body.text.format
    if asked is None or asked.type != "json_schema":
        return replies.FormatReply("text" if asked is None else asked.type)
    return replies.FormatReply(asked.type, asked.name, orjson.loads(bytes(asked.schema)), asked.strict)


def _said_in(items: Sequence[replies.OutputItem]) -> Message:
    """An answer as a turn of a chat."""
    texts = [part.text for item in items if isinstance(item, replies.OutputMessage) for part in item.content]
    calls = []
    for item in items:
        if not isinstance(item, replies.OutputMessage):
            arguments = (
                bodies.text_arguments(item.input) if isinstance(item, replies.CustomCallItem) else item.arguments
            )
            calls.append(PastCall(PastFunction(item.name, arguments), item.call_id))
    return Message("assistant", "".join(texts), tool_calls=calls or None)


def _text_argument(arguments: str) -> str:
    """The text in the arguments of a custom tool; of a call that was cut short, as much as there is."""
    value = try_json(arguments)
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


EACH = 1000
"""Bytes of a response besides what is in it, and of a token's log-probabilities, about."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and the conversation up to its end."""

    messages: tuple[Message, ...]
    reply: replies.ResponseObject
    size: int
    """Bytes that it counts for, about."""


class ResponseStore:
    """The responses of each holder that were used last. A holder sees only its own. Event loop only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: Counter[str | None] = Counter()
        self._stored: defaultdict[str | None, OrderedDict[str, StoredResponse]] = defaultdict(OrderedDict)

    def add(self, holder: str | None, spoken: tuple[Message, ...], reply: replies.ResponseObject) -> None:
        """Keep a response and the conversation that led to it. When the bound is passed, the holder who has most loses
        those used least recently."""
        messages = (*spoken, _said_in(reply.output))
        told = (part for item in reply.output if isinstance(item, replies.OutputMessage) for part in item.content)
        size = EACH + sum(len(part.text) + EACH * len(part.logprobs) for part in told)
        size += sum(EACH // 4 + len(one.content or "") for one in messages)
        size += sum(EACH // 4 + len(call.function.arguments) for one in messages for call in one.tool_calls or ())
        size += len(encode([reply.instructions, reply.metadata, reply.text, reply.tools]))
        self._stored[holder][reply.id] = StoredResponse(messages, reply, size)
        self._sizes[holder] += size
        while self._sizes.total() > self._capacity:
            [(fullest, _)] = self._sizes.most_common(1)
            _, oldest = self._stored[fullest].popitem(last=False)
            self._sizes[fullest] -= oldest.size

    def find(self, name: str, holder: str | None, param: str) -> StoredResponse:
        """The response of an id; raises ApiError 404 for one that is unknown, forgotten or another's."""
        found = self._stored[holder].get(name)
        if found is None:
            message = f"{param}: no response {name[:200]!r} is kept here: it was not stored, or is too long ago"
            raise ApiError(404, message, param=param, code="response_not_found")
        self._stored[holder].move_to_end(name)
        return found

    def remove(self, name: str, holder: str | None) -> None:
        """Forget a response; raises ApiError 404 for one that is unknown, forgotten or another's."""
        self._sizes[holder] -= self.find(name, holder, "id").size
        del self._stored[holder][name]


STORE = web.AppKey("responses", ResponseStore)
