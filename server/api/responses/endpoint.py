"""POST /v1/responses: a conversation in, text and calls of functions out, as OpenAI's responses; and those that are
kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import orjson
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.errors import ApiError, error_body, reword_errors
from server.api.input.body import read_call
from server.api.input.prompts import chat_prompt
from server.api.input.schema import ChatBody, Message, StreamOptions
from server.api.output.answer import ItemWriter, gather_answers, register_call, stream_answers
from server.api.output.call import Call, Part
from server.api.output.large_json import send_reply
from server.api.output.logprobs import chat_logprobs
from server.api.output.reply import ChatLogprob, Head, encode, json_response
from server.api.responses import body as bodies
from server.api.responses import reply as replies
from server.api.responses.items import OutputItems, said_in
from server.api.served_model import MODEL
from server.http.access import holder_of

if TYPE_CHECKING:
    from models.text import Text


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with text and calls of functions, as OpenAI's responses do."""
    body, head = await read_call(request, bodies.ResponsesBody, "resp_")
    chat, spoken = await read_chat(request, body)
    with reword_errors(bodies.OWN_NAMES, bodies.OWN_WORDS):
        prompt = await chat_prompt(chat, request.app[MODEL])
        async with register_call(request, chat, [prompt], head) as call:
            custom = frozenset(tool.name or "" for tool in body.tools or () if tool.type == "custom")
            keep = Keeping(request.app[STORE], holder_of(request), spoken) if body.store is not False else None
            words = ResponseWords(head, request.app[MODEL].text, body, call, OutputItems(head.id, custom), keep)
            if body.stream:
                return await stream_answers(request, call, ItemWriter(call, words), StreamOptions())
            (result,) = await gather_answers(call)
            return await send_reply(request, words.whole(result.join()), result.answer.take_weight())


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


@dataclass(frozen=True, slots=True)
class Keeping:
    """Keeps a response with the conversation that led to it."""

    store: ResponseStore
    holder: str | None
    spoken: tuple[Message, ...]

    def __call__(self, reply: replies.ResponseObject) -> None:
        self.store.add(self.holder, (*self.spoken, said_in(reply.output)), reply)


@dataclass(frozen=True, slots=True)
class ResponseWords:
    """Words one answer as OpenAI's responses: typed, numbered events, without a [DONE]."""

    head: Head
    text: Text
    body: bodies.ResponsesBody
    call: Call
    items: OutputItems
    keep: Keeping | None

    def whole(self, part: Part) -> replies.ResponseObject:
        """The response with all its tokens."""
        *_, last = self.events(part)
        assert isinstance(last, replies.ResponseEvent), "which ends each stream"
        return last.response

    def opening(self) -> Iterator[msgspec.Struct]:
        response = self._response("in_progress", [])
        yield self._event("response.created", response)
        yield self._event("response.in_progress", response)

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        update, cut = part.update, part.update.finish_reason is FinishReason.LENGTH
        yield from self.items.say(part.pieces, self._logprobs(update))
        if update.finish_reason is None:
            return
        status: Literal["incomplete", "completed"] = "incomplete" if cut else "completed"
        yield from self.items.finish(cut=cut)
        details = replies.IncompleteDetails("max_output_tokens") if cut else None
        response = self._response(status, self.items.done, incomplete_details=details)
        if self.keep is not None:
            self.keep(response)
        yield self._event(f"response.{status}", response)

    def failed(self, error: ApiError) -> msgspec.Struct:
        """The last event, with the items that there were when the answer failed, or was broken off."""
        failure = replies.ResponseFailure(error_body(error).error.code, error.message)
        status: replies.Status = "cancelled" if self.call.record.cancelled else "failed"
        return self._event("response.failed", self._response(status, self.items.all(), error=failure))

    def _event(self, kind: str, response: replies.ResponseObject) -> replies.ResponseEvent:
        return replies.ResponseEvent(type=kind, sequence_number=next(self.items.numbers), response=response)

    def _logprobs(self, update: RowUpdate) -> Sequence[ChatLogprob]:
        wanted = bodies.wants_logprobs(self.body) and update.logprobs
        return chat_logprobs(update.logprobs, self.text).content if wanted else []

    def _response(
        self,
        status: replies.Status,
        output: list[replies.OutputItem],
        *,
        incomplete_details: replies.IncompleteDetails | None = None,
        error: replies.ResponseFailure | None = None,
    ) -> replies.ResponseObject:
        body, sampling = self.body, self.call.requests[0].sampling
        over = status != "in_progress"
        return replies.ResponseObject(
            id=self.head.id,
            created_at=self.head.created,
            status=status,
            error=error,
            incomplete_details=incomplete_details,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self.head.model,
            output=list(output),
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
            metrics=self.call.metrics() if over else None,
        )

    def _usage(self) -> replies.ResponseUsage:
        usage = self.call.usage()
        return replies.ResponseUsage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            replies.InputDetails(usage.prompt_tokens_details.cached_tokens),
        )


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

    def add(self, holder: str | None, messages: tuple[Message, ...], reply: replies.ResponseObject) -> None:
        """Keep a response. When the bound is passed, the holder who has most loses those used least recently."""
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
