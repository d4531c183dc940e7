"""POST /v1/messages and /v1/messages/count_tokens: a conversation in, the assistant's turn out, as Anthropic's API."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import orjson
from aiohttp import web

from engine.messages import REPETITION, FinishReason, RowUpdate
from server.api.errors import ApiError, reword_errors
from server.api.input.body import read_body, read_call
from server.api.input.prompts import chat_prompt, render_chat
from server.api.input.schema import StreamOptions
from server.api.messages import reply
from server.api.messages.body import CHAT_WORDS, CountBody, MessagesBody, as_chat
from server.api.output.answer import ItemWriter, gather_answers, register_call, stream_answers
from server.api.output.call import Call, Part
from server.api.output.items import Items
from server.api.output.large_json import send_reply
from server.api.output.reply import Head, json_response
from server.api.served_model import MODEL, model_name
from server.api.ticket import TICKET
from server.api.tools.reading import CallPiece
from server.api.tools.tools import toolbox
from server.http.request_id import request_id


async def messages(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation, as Anthropic's messages do."""
    body, head = await read_call(request, MessagesBody, "msg_")
    model = request.app[MODEL]
    with reword_errors({"stop": "stop_sequences", "response_format": "output_config"}, CHAT_WORDS):
        chat = await model.run_in_thread(as_chat, body)
        prompt = await chat_prompt(chat, model)
        async with register_call(request, chat, [prompt], head) as call:
            words = MessageWords(head, call, request_id(request))
            if body.stream:
                return await stream_answers(request, call, ItemWriter(call, words), StreamOptions())
            (result,) = await gather_answers(call)
            return await send_reply(request, words.message(result.join()), result.answer.take_weight())


async def count_tokens(request: web.Request) -> web.Response:
    """Count the tokens of a conversation, as Anthropic's messages do; raises ApiError 400."""
    model = request.app[MODEL]
    body = await read_body(request, CountBody)
    model_name(body.model, model)

    def count() -> int:
        chat = as_chat(body)
        _, ids = render_chat(
            chat.messages, None, model, continue_final_message=chat.continue_final_message, tools=toolbox(chat)
        )
        return len(ids)

    with reword_errors({}, CHAT_WORDS):
        counted = await model.run_in_thread(count)
    request[TICKET].spend(counted)
    return json_response(reply.TokenCount(counted))


class MessageWords(Items[reply.ContentBlock]):
    """Words one answer as Anthropic's messages: a block for its text, and one for each call.

    The last event of a stream is its end marker: Anthropic sends no [DONE].
    """

    text_kind = reply.TextBlock

    def __init__(self, head: Head, call: Call, request_id: str) -> None:
        super().__init__()
        self._head, self._call, self._request_id = head, call, request_id

    def message(self, part: Part) -> reply.MessageObject:
        """The message with all its tokens."""
        for _ in self.events(part):
            pass
        return self._message(self.done, self._ending(part.update))

    def opening(self) -> Iterator[msgspec.Struct]:
        yield reply.MessageStart(message=self._message([], None))

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        yield from self.push(part.pieces)
        if part.update.finish_reason is not None:
            yield from self.finish()
            yield reply.MessageDelta(delta=self._ending(part.update), usage=self._usage())
            yield reply.MessageStop()

    def failed(self, error: ApiError) -> msgspec.Struct:
        return reply.message_error(error, self._request_id)

    def text(self) -> reply.ContentBlock:
        return reply.TextBlock("")

    def call(self, call: CallPiece) -> reply.ContentBlock:
        return reply.ToolUseBlock(call.id.replace("call_", "toolu_", 1), call.name, {})

    def whole(self, item: reply.ContentBlock, text: str, cut: bool) -> reply.ContentBlock:
        """A call that was cut has no input."""
        return (
            reply.TextBlock(text)
            if isinstance(item, reply.TextBlock)
            else reply.ToolUseBlock(item.id, item.name, _object(text))
        )

    def begun(self, item: reply.ContentBlock) -> Iterator[msgspec.Struct]:
        yield reply.BlockStart(index=len(self.done), content_block=item)

    def grown(self, item: reply.ContentBlock, part: str) -> Iterator[msgspec.Struct]:
        if part:
            delta = reply.BlockText(part) if isinstance(item, reply.TextBlock) else reply.BlockInput(part)
            yield reply.BlockDelta(index=len(self.done), delta=delta)

    def ended(self, item: reply.ContentBlock) -> Iterator[msgspec.Struct]:
        yield reply.BlockStop(index=len(self.done))

    def _usage(self) -> reply.MessageUsage:
        usage = self._call.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return reply.MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)

    def _ending(self, update: RowUpdate) -> reply.Ending:
        """Why the answer ended, once all of it is read."""
        sequence = update.stop_reason
        stopped = sequence if isinstance(sequence, str) and sequence != REPETITION else None
        if update.finish_reason is FinishReason.LENGTH:
            return reply.Ending("max_tokens", None)
        if self._call.answers[0].reader.calls:
            return reply.Ending("tool_use", None)
        return reply.Ending("end_turn" if stopped is None else "stop_sequence", stopped)

    def _message(self, content: list[reply.ContentBlock], ending: reply.Ending | None) -> reply.MessageObject:
        return reply.MessageObject(
            id=self._head.id,
            model=self._head.model,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=self._usage(),
        )


def _object(text: str) -> dict[str, object]:
    """Arguments as an object; an answer that was cut short may have left half of one."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
