"""POST /v1/messages and /v1/messages/count_tokens: a conversation in, the assistant's turn out, as Anthropic's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import orjson
from aiohttp import web

from engine.messages import REPETITION, FinishReason, RowUpdate
from server.api.errors import ApiError, reword_errors
from server.api.input.body import read_body, read_call
from server.api.input.fields import ignore
from server.api.input.prompts import chat_prompt, render_chat
from server.api.input.schema import StreamOptions
from server.api.messages.body import CHAT_WORDS, CountBody, MessagesBody, as_chat, list_ignored
from server.api.messages.reply import (
    BlockDelta,
    BlockInput,
    BlockStart,
    BlockStop,
    BlockText,
    ContentBlock,
    Ending,
    MessageDelta,
    MessageObject,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    TokenCount,
    ToolUseBlock,
    message_error,
)
from server.api.models import model_name
from server.api.output.answer import ItemWriter, gather_answers, register_call, stream_answers
from server.api.output.call import Call, Part
from server.api.output.large_json import send_reply
from server.api.output.reply import Head, json_response
from server.api.served_model import MODEL
from server.api.ticket import TICKET
from server.api.tools.reading import ArgumentsPiece, CallPiece, Piece, TextPiece
from server.api.tools.tools import toolbox
from server.http.request_id import request_id


async def messages(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation, as Anthropic's messages do."""
    body, head = await read_call(request, MessagesBody, "msg_")
    model = request.app[MODEL]
    ignore(request, list_ignored(body))
    with reword_errors({"stop": "stop_sequences", "response_format": "output_config"}, CHAT_WORDS):
        chat = await model.run_in_thread(as_chat, body)
        prompt = await chat_prompt(chat, model)
        async with register_call(request, chat, [prompt], head) as call:
            words = MessageWords(head, call, request_id(request))
            if body.stream:
                return await stream_answers(request, call, ItemWriter(call, words), StreamOptions())
            (result,) = await gather_answers(call)
            return await send_reply(request, words.whole(result.join()), result.answer.take_weight())


async def count_tokens(request: web.Request) -> web.Response:
    """Count the tokens of a conversation, as Anthropic's messages do; raises ApiError 400."""
    model = request.app[MODEL]
    body = await read_body(request, CountBody)
    model_name(body.model, model)
    ignore(request, list_ignored(body))

    def count() -> int:
        chat = as_chat(body)
        _, ids = render_chat(
            chat.messages, None, model, continue_final_message=chat.continue_final_message, tools=toolbox(chat)
        )
        return len(ids)

    with reword_errors({}, CHAT_WORDS):
        counted = await model.run_in_thread(count)
    request[TICKET].spend(counted)
    return json_response(TokenCount(counted))


@dataclass(slots=True)
class MessageWords:
    """Words one answer as Anthropic's messages: a block for its text, and one for each call.

    The last event of a stream is its end marker: Anthropic sends no [DONE].
    """

    head: Head
    call: Call
    request_id: str
    _index: int = -1
    """The block that has begun last."""
    _open: type[ContentBlock] | None = field(default=None)
    """Kind of the block that has begun last; None once that is whole."""

    def whole(self, part: Part) -> MessageObject:
        """The message with all its tokens."""
        return self._message(_blocks(part.pieces), self._ending(part.update))

    def begun(self) -> Iterator[msgspec.Struct]:
        yield MessageStart(message=self._message([], None))

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        for piece in part.pieces:
            yield from self._piece(piece)
        if part.update.finish_reason is not None:
            if self._index < 0:
                yield from self._begin(TextBlock(""))
            yield from self._end()
            yield MessageDelta(delta=self._ending(part.update), usage=self._usage())
            yield MessageStop()

    def failed(self, error: ApiError) -> msgspec.Struct:
        return message_error(error, self.request_id)

    def _piece(self, piece: Piece) -> Iterator[msgspec.Struct]:
        match piece:
            case TextPiece(text):
                if self._open is not TextBlock:
                    yield from self._begin(TextBlock(""))
                yield BlockDelta(index=self._index, delta=BlockText(text))
            case CallPiece(arguments=arguments):
                yield from self._begin(ToolUseBlock(_id(piece), piece.name, {}))
                if arguments:
                    yield BlockDelta(index=self._index, delta=BlockInput(arguments))
            case ArgumentsPiece(arguments=arguments):
                yield BlockDelta(index=self._index, delta=BlockInput(arguments))

    def _begin(self, block: ContentBlock) -> Iterator[msgspec.Struct]:
        yield from self._end()
        self._index += 1
        self._open = type(block)
        yield BlockStart(index=self._index, content_block=block)

    def _end(self) -> Iterator[msgspec.Struct]:
        if self._open is not None:
            self._open = None
            yield BlockStop(index=self._index)

    def _usage(self) -> MessageUsage:
        usage = self.call.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)

    def _ending(self, update: RowUpdate) -> Ending:
        """Why the answer ended, once all of it is read."""
        sequence = update.stop_reason
        stopped = sequence if isinstance(sequence, str) and sequence != REPETITION else None
        if update.finish_reason is FinishReason.LENGTH:
            return Ending("max_tokens", None)
        if self.call.answers[0].reader.calls:
            return Ending("tool_use", None)
        return Ending("end_turn" if stopped is None else "stop_sequence", stopped)

    def _message(self, content: list[ContentBlock], ending: Ending | None) -> MessageObject:
        return MessageObject(
            id=self.head.id,
            model=self.head.model,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=self._usage(),
        )


def _blocks(pieces: Sequence[Piece]) -> list[ContentBlock]:
    """The text of an answer and its calls, in the order in which they came; a call that was cut has no input."""
    blocks: list[ContentBlock] = []
    for said_or_call, inputs in _grouped(pieces):
        if isinstance(said_or_call, TextPiece):
            blocks.append(TextBlock(said_or_call.text))
        else:
            blocks.append(ToolUseBlock(_id(said_or_call), said_or_call.name, _object(inputs)))
    return blocks


def _grouped(pieces: Sequence[Piece]) -> Iterator[tuple[TextPiece | CallPiece, str]]:
    """Each text, neighbours joined, and each call with all of its arguments."""
    texts, calls = [], {}
    for piece in pieces:
        if isinstance(piece, TextPiece):
            texts.append(piece.text)
        elif isinstance(piece, CallPiece):
            calls[piece.index] = (piece, [piece.arguments])
        else:
            calls[piece.index][1].append(piece.arguments)
    if texts:
        yield TextPiece("".join(texts)), ""
    for call, arguments in calls.values():
        yield call, "".join(arguments)


def _id(call: CallPiece) -> str:
    return call.id.replace("call_", "toolu_", 1)


def _object(text: str) -> dict[str, object]:
    """Arguments as an object; an answer that was cut short may have left half of one."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
