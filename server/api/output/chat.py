"""OpenAI's chat completions, whole and streamed."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Literal

import msgspec

from engine.messages import FinishReason, RowUpdate
from server.api.input.schema import ChatBody
from server.api.output.call import Answer, Part
from server.api.output.completions import ChoicesBody, ChoiceWords
from server.api.output.reading import CallPiece, Piece
from server.api.output.reply import ChatLogprobs, Lazy, PromptLogprobs, chat_logprobs, prompt_logprobs


class ChatFinish(StrEnum):
    """Why a chat answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class FunctionCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The function to call, and its arguments as JSON; in a chunk, its name all at once, and more of its arguments."""

    arguments: str
    name: str | None = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that the assistant calls; in a chunk, what is added to it: id and type come with the first, its index with
    each."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | msgspec.UnsetType = msgspec.UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """The assistant's text and calls."""

    content: str | None
    role: str = "assistant"
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None


class ChatReply(ChoicesBody[ChatChoice], frozen=True, kw_only=True, omit_defaults=False):
    """A whole chat completion."""

    prompt_logprobs: PromptLogprobs | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addition of a chunk to a message; the role comes with the first."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """Addition of a chunk to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None


class ChatChunk(ChoicesBody[ChunkChoice], frozen=True, kw_only=True, omit_defaults=True):
    """One event of a streamed chat completion."""


class ChatWords(ChoiceWords[ChatBody]):
    """Words answers as OpenAI's chat completions."""

    shape, object = ChatChunk, "chat.completion.chunk"

    def choices(self, part: Part) -> Iterator[ChunkChoice]:
        answer, update, pieces = part.answer, part.update, part.pieces
        logprobs = self._logprobs(update)
        if not (pieces or logprobs or update.finish_reason):
            return
        *earlier, last = _deltas(answer, pieces)
        for delta in earlier:
            yield ChunkChoice(answer.index, delta, None, None, None)
        yield ChunkChoice(answer.index, last, logprobs, _finish_reason(part), update.stop_reason)

    def whole(self, answers: Sequence[Part]) -> ChatReply:
        given = prompt_logprobs(answers[0].update.prompt_logprobs, self.text, self.body.prompt_logprobs)
        choices = Lazy(self._choice, answers)
        return self.reply(ChatReply, choices, object="chat.completion", prompt_logprobs=given, **self.totals())

    def _choice(self, part: Part) -> ChatChoice:
        said = _said(part.pieces)
        calls = [msgspec.structs.replace(call, index=msgspec.UNSET) for call in _call_deltas(part.pieces)]
        message = ChatMessage(said or None, tool_calls=calls) if calls else ChatMessage(said)
        logprobs = self._logprobs(part.update)
        return ChatChoice(part.answer.index, message, logprobs, _finish_reason(part), part.update.stop_reason)

    def _logprobs(self, update: RowUpdate) -> ChatLogprobs | None:
        return chat_logprobs(update.logprobs, self.text) if self.body.logprobs and update.logprobs else None


def _finish_reason(part: Part) -> ChatFinish | None:
    """None where it continues."""
    if part.update.finish_reason is FinishReason.STOP and part.answer.reader.calls:
        return ChatFinish.TOOL_CALLS
    return None if part.update.finish_reason is None else ChatFinish(part.update.finish_reason)


def _deltas(answer: Answer, pieces: Sequence[Piece]) -> list[Delta]:
    """One at least; the role comes first, so that the first event is the first token."""
    text, called = _said(pieces), _call_deltas(pieces)
    found = [Delta(content=text)] if text else []
    found += [Delta(tool_calls=[call]) for call in called]
    found = found or [Delta(content=None if answer.prompt.tools.offered else "")]
    if not answer.begun:
        found[0] = msgspec.structs.replace(found[0], role="assistant")
    answer.begun = True
    return found


def _said(pieces: Sequence[Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _call_deltas(pieces: Sequence[Piece]) -> list[ToolCall]:
    """One a call, each for its own chunk, since many clients read only the first."""
    called = [piece for piece in pieces if isinstance(piece, CallPiece)]
    deltas = []
    for index, group in groupby(called, key=attrgetter("index")):
        first, *more = group
        function = FunctionCall("".join(part.arguments for part in (first, *more)), first.name or None)
        deltas.append(ToolCall(function, first.id or None, "function" if first.id else None, index))
    return deltas
