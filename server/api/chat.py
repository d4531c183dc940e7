"""POST /v1/chat/completions: a conversation in, the assistant's next turn out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.input.body import read_call
from server.api.input.prompts import chat_prompt
from server.api.input.schema import ChatBody
from server.api.output.answer import Result, respond
from server.api.output.call import Answer, Part
from server.api.output.logprobs import chat_logprobs, prompt_logprobs
from server.api.output.reply import (
    ChatChoice,
    ChatChunk,
    ChatFinish,
    ChatLogprobs,
    ChatMessage,
    ChatReply,
    ChunkChoice,
    Delta,
    FunctionCall,
    FunctionDelta,
    Head,
    Lazy,
    Metrics,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from server.api.served_model import MODEL
from server.api.tools.reading import ArgumentsPiece, CallPiece, Piece, TextPiece

if TYPE_CHECKING:
    from models.text import Text


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation."""
    body, head = await read_call(request, ChatBody, "chatcmpl-")
    prompt = await chat_prompt(body, request.app[MODEL])
    return await respond(request, body, [prompt], ChatForm(head, request.app[MODEL].text, body))


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Words answers as OpenAI's chat completions."""

    head: Head
    text: Text
    body: ChatBody

    def events(self, part: Part, usage: Usage | None) -> Iterator[ChatChunk]:
        answer, update, pieces = part.answer, part.update, part.pieces
        logprobs = self._logprobs(update)
        if not (pieces or logprobs or update.finish_reason):
            return
        *earlier, last = _deltas(answer, pieces)
        for delta in earlier:
            yield self._chunk([ChunkChoice(answer.index, delta, None, None, None)], usage)
        choice = ChunkChoice(answer.index, last, logprobs, _finish_reason(part), update.stop_reason)
        yield self._chunk([choice], usage)

    def closing(self, usage: Usage, metrics: Metrics) -> ChatChunk:
        return self._chunk([], usage, metrics)

    def whole(self, results: Sequence[Result], usage: Usage, metrics: Metrics) -> ChatReply:
        return ChatReply(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=Lazy(self._choice, results),
            usage=usage,
            metrics=metrics,
            system_fingerprint=self.head.fingerprint,
            prompt_logprobs=prompt_logprobs(
                results[0].updates[0].prompt_logprobs, self.text, self.body.prompt_logprobs
            ),
        )

    def _choice(self, result: Result) -> ChatChoice:
        part = result.join()
        called, said = _calls(part.pieces), _said(part.pieces)
        message = ChatMessage(said or None, tool_calls=called) if called else ChatMessage(said)
        logprobs = self._logprobs(part.update)
        return ChatChoice(result.answer.index, message, logprobs, _finish_reason(part), part.update.stop_reason)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None, metrics: Metrics | None = None) -> ChatChunk:
        return ChatChunk(
            id=self.head.id,
            object="chat.completion.chunk",
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            system_fingerprint=self.head.fingerprint,
            usage=usage,
            metrics=metrics,
        )

    def _logprobs(self, update: RowUpdate) -> ChatLogprobs | None:
        return chat_logprobs(update.logprobs, self.text) if self.body.logprobs and update.logprobs else None


def _finish_reason(part: Part) -> ChatFinish | None:
    """Why the answer ended; None where it goes on."""
    if part.update.finish_reason is FinishReason.STOP and part.answer.reader.calls:
        return ChatFinish.TOOL_CALLS
    return None if part.update.finish_reason is None else ChatFinish(part.update.finish_reason)


def _deltas(answer: Answer, pieces: Sequence[Piece]) -> list[Delta]:
    """The text, then each call by itself; one delta at least.

    The role comes with the first, so that clients may take the first event for the first token.
    """
    text, called = _said(pieces), _call_deltas(pieces)
    found = [Delta(content=text)] if text else []
    found += [Delta(tool_calls=[call]) for call in called]
    found = found or [Delta(content=None if answer.prompt.tools else "")]
    if not answer.begun:
        found[0] = msgspec.structs.replace(found[0], role="assistant")
    answer.begun = True
    return found


def _said(pieces: Sequence[Piece]) -> str:
    """The text besides the calls."""
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def _call_deltas(pieces: Sequence[Piece]) -> list[ToolCallDelta]:
    """Additions to the calls of a message, one delta a call. Each belongs in a chunk of its own: many clients read
    the first delta of a chunk only, or take a second one of the same index for another call.
    """
    parts = [piece for piece in pieces if not isinstance(piece, TextPiece)]
    return [
        _call_delta([part for part in parts if part.index == index]) for index in dict.fromkeys(p.index for p in parts)
    ]


def _call_delta(parts: Sequence[CallPiece | ArgumentsPiece]) -> ToolCallDelta:
    """The addition of a chunk to one call, from its parts in order."""
    first, arguments = parts[0], "".join(part.arguments for part in parts)
    if isinstance(first, ArgumentsPiece):
        return ToolCallDelta(first.index, FunctionDelta(arguments))
    return ToolCallDelta(first.index, FunctionDelta(arguments, first.name), first.id, "function")


def _calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """All calls of a message."""
    return [
        ToolCall(piece.id, FunctionCall(piece.name, piece.arguments + _rest(piece.index, pieces)))
        for piece in pieces
        if isinstance(piece, CallPiece)
    ]


def _rest(index: int, pieces: Sequence[Piece]) -> str:
    return "".join(piece.arguments for piece in pieces if isinstance(piece, ArgumentsPiece) and piece.index == index)
