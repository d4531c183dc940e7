"""POST /v1/responses: text in, text out, as OpenAI's responses have it, whole or as typed events. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.errors import ApiError, error_body, reword_errors
from server.api.input.body import read_call
from server.api.input.prompts import chat_prompt
from server.api.input.schema import StreamOptions
from server.api.output.answer import gather_answers, join_updates, register_call, stream_answers
from server.api.output.call import Call
from server.api.output.logprobs import chat_logprobs
from server.api.output.reply import ChatLogprob, Head, json_response
from server.api.output.sse import EventStream
from server.api.output.updates import Updates
from server.api.responses.body import OWN_NAMES, OWN_WORDS, ResponsesBody, as_chat, wants_logprobs
from server.api.responses.reply import (
    FormatReply,
    IncompleteDetails,
    InputDetails,
    ItemEvent,
    OutputMessage,
    OutputText,
    PartEvent,
    ResponseEvent,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
    TextDelta,
    TextDone,
    TextReply,
)
from server.api.served_model import MODEL, Codec


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer text with text, as OpenAI's responses do; nothing is stored."""
    body, head = await read_call(request, ResponsesBody, "resp_")
    chat = as_chat(body)
    with reword_errors(OWN_NAMES, OWN_WORDS):
        prompt = await chat_prompt(chat, request.app[MODEL])
        async with register_call(request, chat, [prompt], head) as call:
            form = ResponseForm(head, request.app[MODEL].text, body, call)
            if body.stream:
                return await stream_answers(request, call, ResponseWriter(call, form), StreamOptions())
            ((_, update),) = await gather_answers(call)
            return json_response(form.ended(update))


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Words one answer as OpenAI's responses: one message with one part."""

    head: Head
    text: Codec
    body: ResponsesBody
    call: Call

    @property
    def item_id(self) -> str:
        return self.head.id.replace("resp_", "msg_", 1)

    def begun(self) -> ResponseObject:
        """Before the first token."""
        return self._response("in_progress", [])

    def ended(self, whole: RowUpdate) -> ResponseObject:
        """With all tokens."""
        cut = whole.finish_reason is FinishReason.LENGTH
        details = IncompleteDetails("max_output_tokens") if cut else None
        return self._response("incomplete" if cut else "completed", [self.item(whole)], incomplete_details=details)

    def failed(self, partial: RowUpdate | None, error: ApiError) -> ResponseObject:
        """With what there was when it failed, or was broken off."""
        output = [] if partial is None else [self.item(partial, failed=True)]
        failure = ResponseFailure(error_body(error).error.code, error.message)
        return self._response("cancelled" if self.call.record.cancelled else "failed", output, error=failure)

    def item(self, update: RowUpdate, *, failed: bool = False) -> OutputMessage:
        """The message, whole or cut."""
        cut = failed or update.finish_reason is FinishReason.LENGTH
        return OutputMessage(self.item_id, "incomplete" if cut else "completed", [self.part(update)])

    def part(self, update: RowUpdate) -> OutputText:
        return OutputText(update.text, self.logprobs(update))

    def logprobs(self, update: RowUpdate) -> list[ChatLogprob]:
        wanted = wants_logprobs(self.body) and update.logprobs
        return chat_logprobs(update.logprobs, self.text).content if wanted else []

    def _response(
        self,
        status: Status,
        output: list[OutputMessage],
        *,
        incomplete_details: IncompleteDetails | None = None,
        error: ResponseFailure | None = None,
    ) -> ResponseObject:
        body, sampling = self.body, self.call.requests[0].sampling
        over = status != "in_progress"
        return ResponseObject(
            id=self.head.id,
            created_at=self.head.created,
            status=status,
            error=error,
            incomplete_details=incomplete_details,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self.head.model,
            output=output,
            temperature=sampling.temperature,
            text=TextReply(_format(body)),
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
            usage=self._usage() if over else None,
            metrics=self.call.metrics() if over else None,
        )

    def _usage(self) -> ResponseUsage:
        usage = self.call.usage()
        return ResponseUsage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
        )


def _format(body: ResponsesBody) -> FormatReply:
    asked = None if body.text is None else body.text.format
    if asked is None or asked.type != "json_schema":
        return FormatReply("text" if asked is None else asked.type)
    return FormatReply(asked.type, asked.name, msgspec.json.decode(asked.schema, type=dict[str, Any]), asked.strict)


@dataclass(slots=True)
class ResponseWriter:
    """One response as typed, numbered events. The last of them is the end marker: OpenAI sends no [DONE] here."""

    call: Call
    form: ResponseForm
    _numbers: Iterator[int] = field(default_factory=count)
    _updates: list[RowUpdate] = field(default_factory=list)

    async def write(self, stream: EventStream) -> None:
        begun = self.form.begun()
        await stream.send([self._event("response.created", begun), self._event("response.in_progress", begun)])
        async with Updates(self.call.requests) as updates:
            async for arrivals in updates:
                await stream.send(self._events(self.call.receive(0, arrivals[0])))
        await stream.send(self._ending(join_updates(self._updates)))

    async def fail(self, stream: EventStream, error: ApiError) -> None:
        partial = join_updates(self._updates) if self._updates else None
        await stream.send([self._event("response.failed", self.form.failed(partial, error))])

    def _events(self, update: RowUpdate) -> Iterator[msgspec.Struct]:
        if not self._updates:
            yield from self._opening()
        self._updates.append(update)
        logprobs = self.form.logprobs(update)
        if update.text or logprobs:
            yield TextDelta(
                type="response.output_text.delta",
                sequence_number=next(self._numbers),
                item_id=self.form.item_id,
                delta=update.text,
                logprobs=logprobs,
            )

    def _opening(self) -> Iterator[msgspec.Struct]:
        item = OutputMessage(self.form.item_id, "in_progress", [])
        yield self._item("response.output_item.added", item)
        yield self._part("response.content_part.added", OutputText("", []))

    def _ending(self, whole: RowUpdate) -> Iterator[msgspec.Struct]:
        part = self.form.part(whole)
        yield TextDone(
            type="response.output_text.done",
            sequence_number=next(self._numbers),
            item_id=self.form.item_id,
            text=part.text,
            logprobs=part.logprobs,
        )
        yield self._part("response.content_part.done", part)
        yield self._item("response.output_item.done", self.form.item(whole))
        response = self.form.ended(whole)
        yield self._event(f"response.{response.status}", response)

    def _event(self, kind: str, response: ResponseObject) -> ResponseEvent:
        return ResponseEvent(type=kind, sequence_number=next(self._numbers), response=response)

    def _item(self, kind: str, item: OutputMessage) -> ItemEvent:
        return ItemEvent(type=kind, sequence_number=next(self._numbers), item=item)

    def _part(self, kind: str, part: OutputText) -> PartEvent:
        return PartEvent(type=kind, sequence_number=next(self._numbers), item_id=self.form.item_id, part=part)
