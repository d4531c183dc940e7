"""POST /v1/chat/completions: a conversation in, the assistant's next turn out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from server.api.generator import DISPATCHER
from server.api.input.body import read_body
from server.api.input.prompts import chat_prompt
from server.api.input.refusals import refuse_unsupported
from server.api.input.schema import ChatBody
from server.api.models import model_name
from server.api.output.answer import respond
from server.api.output.call import Answer
from server.api.output.logprobs import chat_logprobs, prompt_logprobs
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
    Head,
    Metrics,
    Usage,
)
from server.api.served_model import MODEL, Codec
from server.api.tools.reading import Piece, Reader, Said
from server.api.tools.replies import calls, deltas, reader_of, said


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Handle one chat completion."""
    model = request.app[MODEL]
    body = await read_body(request, ChatBody)
    arrival = request.app[DISPATCHER].now()
    head = Head(f"chatcmpl-{secrets.token_hex(16)}", model_name(body.model, model))
    refuse_unsupported(body)
    prompt = await chat_prompt(body, model)
    return await respond(request, body, [prompt], ChatForm(head, model.text, body), arrival)


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Words answers as OpenAI's chat completions."""

    head: Head
    text: Codec
    body: ChatBody
    readers: dict[int, Reader] = field(default_factory=dict)
    """Who finds the calls in each answer, by its index."""

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

    def whole(self, results: Sequence[tuple[Answer, RowUpdate]], usage: Usage, metrics: Metrics) -> ChatReply:
        return ChatReply(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[self._choice(answer, update) for answer, update in results],
            usage=usage,
            metrics=metrics,
            system_fingerprint=FINGERPRINT,
            prompt_logprobs=prompt_logprobs(results[0][1].prompt_logprobs, self.text, self.body.prompt_logprobs),
        )

    def _choice(self, answer: Answer, update: RowUpdate) -> ChatChoice:
        pieces = self._pieces(answer, update)
        called = calls(pieces)
        message = ChatMessage(said(pieces) or None, tool_calls=called) if called else ChatMessage(said(pieces))
        finish = self._finish(answer, update)
        return ChatChoice(answer.index, message, self._logprobs(update), finish, update.stop_reason)

    def _pieces(self, answer: Answer, update: RowUpdate) -> list[Piece]:
        """What an update says, and what it calls where there are tools."""
        if not answer.prompt.tools:
            return [Said(update.text)] if update.text else []
        if answer.index not in self.readers:
            self.readers[answer.index] = reader_of(answer.prompt)
        return self.readers[answer.index].push(update.text, last=update.finish_reason is not None)

    def _finish(self, answer: Answer, update: RowUpdate) -> ChatFinish | None:
        """After the pieces of the same update."""
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
    """What is said, then each call by itself; one delta at least.

    The role comes with the first, so that clients may take the first event for the first token.
    """
    text, called = said(pieces), deltas(pieces)
    found = [Delta(content=text)] if text else []
    found += [Delta(tool_calls=[call]) for call in called]
    found = found or [Delta(content=None if answer.prompt.tools else "")]
    if not answer.begun:
        found[0] = msgspec.structs.replace(found[0], role="assistant")
    answer.begun = True
    return found
