"""OpenAI's completions, whole and streamed, and what chat completions share: indexed choices, and [DONE]."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import orjson

from engine.messages import FinishReason, RowUpdate, TokenLogprob
from scheduler.stream import Shortcut
from server.api.errors import ApiError, error_body
from server.api.input.schema import CompletionBody, StreamOptions, TextBody
from server.api.output import reply as replies
from server.api.output.answer import Words
from server.api.output.call import Call, Part
from server.api.output.reading import PlainText
from server.api.output.sse import EventStream, frame
from server.api.served_model import ServedModel
from server.line_ends import escape_line_ends

B = TypeVar("B", bound=TextBody)
C = TypeVar("C", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class ChoicesBody(msgspec.Struct, Generic[C], frozen=True, kw_only=True, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: Sequence[C]
    system_fingerprint: str
    usage: replies.Usage | None = None
    metrics: replies.Metrics | None = None


class ChoiceWords(Words, Generic[B]):
    end_marker = True
    shape: ClassVar[type[msgspec.Struct]]  # of events
    object: ClassVar[str]  # of these

    def __init__(self, call: Call, body: B, model: ServedModel) -> None:
        self.call, self.body, self.model, self.text = call, body, model, model.text
        self._options = body.stream_options or StreamOptions()

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        usage = self.call.usage() if self._options.continuous_usage_stats else None
        for choice in self.choices(part):
            yield self.reply(self.shape, [choice], usage=usage, object=self.object)

    def closing(self) -> Iterator[msgspec.Struct]:
        if self._options.include_usage:
            yield self.reply(self.shape, [], object=self.object, **self.totals())

    def failed(self, error: ApiError) -> msgspec.Struct:
        return error_body(error)

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        """Only for a single answer whose updates just add text."""
        first, *others = self.call.answers
        plain = isinstance(first.reader, PlainText) and not self.call.scoring
        return None if others or not plain or self._options.continuous_usage_stats else TextFrames(self, stream).send

    def reply(self, shape: type[T], choices: Sequence[msgspec.Struct], **more: Any) -> T:
        record, fingerprint = self.call.record, self.model.fingerprint
        common = {"id": record.id, "created": record.created, "model": record.model, "system_fingerprint": fingerprint}
        return shape(**common, choices=choices, **more)

    def totals(self) -> dict[str, Any]:
        return {"usage": self.call.usage(), "metrics": self.call.metrics()}

    @abstractmethod
    def choices(self, part: Part) -> Iterable[msgspec.Struct]:
        """An event each."""


MARK = "the text of an event, of which all others of its answer differ in nothing else"


class TextFrames:
    """The first event's frame around each text."""

    def __init__(self, words: ChoiceWords[Any], stream: EventStream) -> None:
        self._answer = words.call.answers[0]
        self._words, self._stream = words, stream
        self._around: tuple[bytes, ...] = ()  # before and behind the text

    def send(self, update: RowUpdate) -> bool:
        """A Shortcut; False for an answer's first update, and one with more than text."""
        if not update.text or not self._answer.begun or update.finish_reason is not None or update.logprobs:
            return False
        if not self._around:
            part = Part(self._answer, RowUpdate(update.row_id, text=MARK), [MARK])
            self._around = tuple(frame(self._words.events(part)).split(orjson.dumps(MARK)))
        before, after = self._around
        text = orjson.dumps(update.text)
        if not self._stream.send_now(before, text if text.isascii() else escape_line_ends(text), after):
            return False
        self._stream.note_sent(self._answer.request.stream.made)
        self._answer.tokens += len(update.token_ids)
        return True


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: replies.CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_logprobs: replies.PromptLogprobs | None = None


class CompletionReply(ChoicesBody[CompletionChoice], frozen=True, kw_only=True, omit_defaults=True):
    """A whole completion, or one event of a streamed one: they have one shape."""


class CompletionWords(ChoiceWords[CompletionBody]):
    """`echo` puts the prompt before the first token."""

    shape, object = CompletionReply, "text_completion"

    def choices(self, part: Part) -> Iterator[CompletionChoice]:
        choice = self._choice(part)
        if choice.text or choice.logprobs or choice.finish_reason:
            yield choice

    def whole(self, answers: Sequence[Part]) -> CompletionReply:
        return self.reply(CompletionReply, replies.Lazy(self._choice, answers), object=self.object, **self.totals())

    def _choice(self, part: Part) -> CompletionChoice:
        answer, update = part.answer, part.update
        ids, said = update.token_ids, update.text
        tokens: Sequence[TokenLogprob | None] = update.logprobs
        if self.body.echo and not answer.begun:
            ids, said = answer.prompt.ids + ids, answer.prompt.text + said
            tokens = (*(update.prompt_logprobs or ()), *tokens)
        answer.begun = True
        logprobs, alternatives = None, self.body.logprobs
        if alternatives is not None and ids:
            lengths = (replies.characters(token_id, self.text) for token_id in ids)
            *offsets, answer.characters = accumulate(lengths, initial=answer.characters)
            logprobs = replies.completion_logprobs(ids, tokens, self.text, alternatives=alternatives, offsets=offsets)
        return CompletionChoice(
            index=answer.index,
            text=said,
            logprobs=logprobs,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
            prompt_logprobs=replies.prompt_logprobs(update.prompt_logprobs, self.text, self.body.prompt_logprobs),
        )
