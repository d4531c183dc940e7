"""POST /v1/chat/completions: a conversation in, the assistant's next turn out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.input.body import read_call
from server.api.input.prompts import chat_prompt
from server.api.input.schema import ChatBody
from server.api.output.answer import Result, respond
from server.api.output.call import Answer
from server.api.output.logprobs import chat_logprobs, prompt_logprobs
from server.api.output.pieces import Lazy
from server.api.output.reply import (
    FINGERPRINT,
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
    Metrics,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from server.api.served_model import MODEL, Codec
from server.api.tools.reading import Argued, Called, Piece, Reader, Said, reader_of


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation."""
    body, head = await read_call(request, ChatBody, "chatcmpl-")
    prompt = await chat_prompt(body, request.app[MODEL])
    return await respond(request, body, [prompt], ChatForm(head, request.app[MODEL].text, body))


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Words answers as OpenAI's chat completions."""

    head: Head
    text: Codec
    body: ChatBody
    readers: dict[int, Reader] = field(default_factory=dict)
    """The reader that finds the calls in each answer, by its index."""

    def events(self, answer: Answer, update: RowUpdate, usage: Usage | None) -> Iterator[ChatChunk]:
        logprobs = self._logprobs(update)
        pieces = self._pieces(answer, update)
        if not (pieces or logprobs or update.finish_reason):
            return
        *earlier, last = _deltas(answer, pieces)
        for delta in earlier:
            yield self._chunk([ChunkChoice(answer.index, delta, None, None, None)], usage)
        choice = ChunkChoice(answer.index, last, logprobs, self._finish(answer, update), update.stop_reason)
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
            system_fingerprint=FINGERPRINT,
            prompt_logprobs=prompt_logprobs(
                results[0].updates[0].prompt_logprobs, self.text, self.body.prompt_logprobs
            ),
        )

    def _choice(self, result: Result) -> ChatChoice:
        answer, update = result.answer, result.join()
        pieces = self._pieces(answer, update)
        called = _calls(pieces)
        message = ChatMessage(_said(pieces) or None, tool_calls=called) if called else ChatMessage(_said(pieces))
        finish = self._finish(answer, update)
        return ChatChoice(answer.index, message, self._logprobs(update), finish, update.stop_reason)

    def _pieces(self, answer: Answer, update: RowUpdate) -> list[Piece]:
        """The text of an update, and its calls where there are tools."""
        if answer.index not in self.readers:
            prompt = answer.prompt
            self.readers[answer.index] = reader_of(prompt.tools, guaranteed=prompt.grammar is not None)
        return self.readers[answer.index].push(update.text, last=update.finish_reason is not None)

    def _finish(self, answer: Answer, update: RowUpdate) -> ChatFinish | None:
        """Why the answer ended, once the pieces of the update are read; None where it goes on."""
        if update.finish_reason is None:
            return None
        reader = self.readers.get(answer.index)
        if reader is not None and reader.calls and update.finish_reason is FinishReason.STOP:
            return ChatFinish.TOOL_CALLS
        return ChatFinish(update.finish_reason)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None, metrics: Metrics | None = None) -> ChatChunk:
        return ChatChunk(
            id=self.head.id,
            object="chat.completion.chunk",
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            system_fingerprint=FINGERPRINT,
            usage=usage,
            metrics=metrics,
        )

    def _logprobs(self, update: RowUpdate) -> ChatLogprobs | None:
        return chat_logprobs(update.logprobs, self.text) if self.body.logprobs and update.logprobs else None


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
    return "".join(piece.text for piece in pieces if isinstance(piece, Said))


def _call_deltas(pieces: Sequence[Piece]) -> list[ToolCallDelta]:
    """Additions to the calls of a message, one delta a call. Each belongs in a chunk of its own: many clients read
    the first delta of a chunk only, or take a second one of the same index for another call.
    """
    parts = [piece for piece in pieces if not isinstance(piece, Said)]
    return [
        _call_delta([part for part in parts if part.index == index]) for index in dict.fromkeys(p.index for p in parts)
    ]


def _call_delta(parts: Sequence[Called | Argued]) -> ToolCallDelta:
    """The addition of a chunk to one call, from its parts in order."""
    first, arguments = parts[0], "".join(part.arguments for part in parts)
    if isinstance(first, Argued):
        return ToolCallDelta(first.index, FunctionDelta(arguments))
    return ToolCallDelta(first.index, FunctionDelta(arguments, first.name), first.id, "function")


def _calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """All calls of a message."""
    return [
        ToolCall(piece.id, FunctionCall(piece.name, piece.arguments + _rest(piece.index, pieces)))
        for piece in pieces
        if isinstance(piece, Called)
    ]


def _rest(index: int, pieces: Sequence[Piece]) -> str:
    return "".join(piece.arguments for piece in pieces if isinstance(piece, Argued) and piece.index == index)
