"""Prompts -> the HTTP response with their answers, whole or streamed.

It knows no endpoint's format; Words make the bodies and the events. What the APIs' words share is here: the choices of
OpenAI's completions, and the items of the newer APIs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import orjson
from aiohttp import web

from engine.messages import RowUpdate
from scheduler.stream import Shortcut, join_updates
from server.api.errors import ApiError, error_body, internal_error
from server.api.input.body import is_asked
from server.api.input.prompts import Prompt
from server.api.input.schema import StreamOptions, TextBody
from server.api.limits import LIMITS
from server.api.output.call import Answer, Call, Part, open_call, read_updates
from server.api.output.reading import CallPiece, Piece, PlainText, TextPiece
from server.api.output.reply import SHORT_FORM, Metrics, Usage, expectation_of, headers_of
from server.api.output.sse import (
    DONE,
    FIRST_LOOK,
    HEADER,
    LOOKS,
    EventStream,
    PlaceNotes,
    frame,
    look_often,
    send_reply,
)
from server.api.output.wanted import list_wanted
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import DISPATCHER, MODEL, ServedModel
from server.api.ticket import TICKET
from server.http.request_id import request_id

log = logging.getLogger(__name__)


class Words(ABC):
    """The wording of one call's answers in an API, as a whole body or as the events of a stream."""

    end_marker: ClassVar[bool]
    """Whether [DONE] ends its streams."""
    repeats: ClassVar[bool]
    """Whether the events of an answer's last part have all of the answer again."""

    def opening(self) -> Iterable[msgspec.Struct]:
        """Events before the first token."""
        return ()

    def events(self, parts: Sequence[Part]) -> Iterator[msgspec.Struct]:
        """Events of the next parts of answers."""
        for part in parts:
            yield from self.part_events(part)

    @abstractmethod
    def part_events(self, part: Part) -> Iterable[msgspec.Struct]:
        """Events of an answer's next part; none where it shows the client nothing. Items' last part ends the stream."""

    def closing(self) -> Iterable[msgspec.Struct]:
        """Events behind the last part of all answers."""
        return ()

    @abstractmethod
    def failed(self, error: ApiError) -> msgspec.Struct:
        """The last event of a stream that failed, as the status is sent by then."""

    @abstractmethod
    def whole(self, answers: Sequence[Part]) -> msgspec.Struct:
        """The body of a reply with all answers at once, each of which is one part."""

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        """Sends updates that only add text; None where events tell more."""
        return None


async def respond(
    request: web.Request, record: Record, body: TextBody, prompts: Sequence[Prompt], words: Callable[[Call], Words]
) -> web.StreamResponse:
    """Generate what the body asks for and answer the client; raises ApiError until the answer begins."""
    progress, ticket, app = is_asked(request, HEADER), request[TICKET], request.app
    ticket.count_answers((body.n or 1) * len(prompts))
    request[CALL] = record.id
    with app[REGISTER].enter(record):
        wanted = list_wanted(body, prompts, app[MODEL])
        async with open_call(body, wanted, app, record) as call:
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of(call.requests))
            if body.stream:
                options = body.stream_options
                told = progress or (options is not None and bool(options.include_progress))
                return await _stream(request, call, words(call), progress=told)
            reply = words(call).whole(await gather_answers(call))
            return await send_reply(request, reply, sum(answer.weight for answer in call.answers))


async def gather_answers(call: Call) -> list[Part]:
    """Wait for all answers of a call, and make each one part; raises ApiError when one fails."""
    updates: list[list[RowUpdate]] = [[] for _ in call.answers]
    pieces: list[list[Piece]] = [[] for _ in call.answers]
    async with read_updates(call.requests) as coming:
        async for arrivals in coming:
            for place, update in arrivals.items():
                part = call.receive(place, update)
                updates[place].append(part.update)
                pieces[place].extend(part.pieces)
    return [
        Part(answer, join_updates(own), said) for answer, own, said in zip(call.answers, updates, pieces, strict=True)
    ]


async def _stream(request: web.Request, call: Call, words: Words, *, progress: bool) -> web.StreamResponse:
    """Send a call's answers as they come, and its place in line before if the client asks for that."""
    limits = request.app[LIMITS]
    async with EventStream(request, limits) as stream:
        # When the client is gone, leaving cancels what runs.
        with suppress(ConnectionError):
            notes = PlaceNotes(stream, call.requests, request.app[DISPATCHER], limits.place_interval)
            first = min(FIRST_LOOK, limits.place_interval)
            with look_often(notes.look, first, request.app[LOOKS]) if progress else nullcontext():
                await _send(stream, request, call, words)
        return stream.response


async def _send(stream: EventStream, request: web.Request, call: Call, words: Words) -> None:
    """Send everything from the first event to the last."""
    try:
        await stream.send(words.opening())
        async with read_updates(call.requests, words.shortcut(stream)) as updates:
            async for arrivals in updates:
                parts = [call.receive(place, update) for place, update in arrivals.items()]
                weights = (part.answer.weight if words.repeats and part.ends else part.weight for part in parts)
                await stream.send(words.events(parts), sum(weights))
        await stream.send(words.closing())
    except ConnectionError:
        raise
    except ApiError as error:
        await stream.send([words.failed(error)])
    except Exception:
        log.exception("request %s failed in its stream", request_id(request))
        await stream.send([words.failed(internal_error(request))])
    if words.end_marker:
        await stream.forward(DONE)


B = TypeVar("B", bound=TextBody)
C = TypeVar("C", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class ChoicesBody(msgspec.Struct, Generic[C], frozen=True, kw_only=True, omit_defaults=True):
    """A whole reply of OpenAI's completions, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[C]
    system_fingerprint: str
    usage: Usage | None = None
    metrics: Metrics | None = None


class ChoiceWords(Words, Generic[B]):
    """Words each answer as a choice with an index, and ends streams with token counts where these are wanted."""

    end_marker, repeats = True, False
    shape: ClassVar[type[msgspec.Struct]]
    """The event of a stream."""
    object: ClassVar[str]
    """The `object` of that event."""

    def __init__(self, call: Call, body: B, model: ServedModel) -> None:
        self.call, self.body, self.model, self.text = call, body, model, model.text
        self._options = body.stream_options or StreamOptions()

    def part_events(self, part: Part) -> Iterator[msgspec.Struct]:
        usage = self.call.usage() if self._options.continuous_usage_stats else None
        for choice in self.choices(part):
            yield self.reply(self.shape, [choice], usage=usage, object=self.object)

    def closing(self) -> Iterator[msgspec.Struct]:
        if self._options.include_usage:
            yield self.reply(self.shape, [], object=self.object, **self.totals())

    def failed(self, error: ApiError) -> msgspec.Struct:
        return error_body(error)

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        """Sends what only adds text; None where events tell more, or of several answers."""
        first, *others = self.call.answers
        plain = isinstance(first.reader, PlainText) and not self.call.scoring
        return None if others or not plain or self._options.continuous_usage_stats else TextFrames(self, stream).send

    def reply(self, shape: type[T], choices: Sequence[msgspec.Struct], **more: Any) -> T:
        """A body with some choices."""
        record, fingerprint = self.call.record, self.model.fingerprint
        common = {"id": record.id, "created": record.created, "model": record.model, "system_fingerprint": fingerprint}
        return shape(**common, choices=choices, **more)

    def totals(self) -> dict[str, Any]:
        """The call's token counts and times, as fields of a body."""
        return {"usage": self.call.usage(), "metrics": self.call.metrics()}

    @abstractmethod
    def choices(self, part: Part) -> Iterable[msgspec.Struct]:
        """The choices of a stream's events for a part, each for an event of its own."""


MARK = "the text of an event, of which all others of its answer differ in nothing else"


class TextFrames:
    """Events that only add text to a call's only answer: the frame of the first one, each with another text in it."""

    def __init__(self, words: ChoiceWords[Any], stream: EventStream) -> None:
        self._answer: Answer = words.call.answers[0]
        self._words, self._stream = words, stream
        self._around: tuple[bytes, ...] = ()  # the bytes before and behind the text

    def send(self, update: RowUpdate) -> bool:
        """Send an update at once, as a Shortcut; False for an answer's first, and one that brings more than text."""
        if not update.text or not self._answer.begun or update.finish_reason is not None or update.logprobs:
            return False
        if not self._around:
            part = Part(self._answer, RowUpdate(update.row_id, text=MARK), [TextPiece(MARK)])
            self._around = tuple(frame(self._words.events([part])).split(orjson.dumps(MARK)))
        before, after = self._around
        if not self._stream.send_now(before + orjson.dumps(update.text) + after):
            return False
        self._answer.tokens += len(update.token_ids)
        return True


class ItemWords(Words, Generic[T]):
    """Words a call's only answer as items that open, grow and close: one for its text, one for each call of a tool.

    An API's vocabulary makes the items and words each step as typed events, of which the last ends the stream; a reply
    that is not streamed passes the events over.
    """

    end_marker, repeats = False, True
    text_kind: ClassVar[type[msgspec.Struct]]

    def __init__(self) -> None:
        self.done: list[T] = []
        self.open: T | None = None
        self._parts: list[str] = []  # of the open item's text or arguments so far

    def push(self, pieces: Sequence[Piece]) -> Iterator[msgspec.Struct]:
        """Add the next pieces."""
        for piece in pieces:
            if isinstance(piece, CallPiece) and piece.id:
                yield from self._begin(self.call_item(piece))
            elif isinstance(piece, TextPiece) and not isinstance(self.open, self.text_kind):
                yield from self._begin(self.text_item())
            part = piece.text if isinstance(piece, TextPiece) else piece.arguments
            self._parts.append(part)
            if self.open is not None:
                yield from self.grown(self.open, part)

    def finish(self, *, cut: bool = False) -> Iterator[msgspec.Struct]:
        """End the last item, which may be `cut` short; an answer without any is an empty text."""
        if self.open is None and not self.done:
            yield from self._begin(self.text_item())
        yield from self._close(cut)

    def all(self) -> list[T]:
        """The items so far, with the last as far as it has come."""
        return [*self.done, *(() if self.open is None else (self.complete(self.open, "".join(self._parts), True),))]

    def _begin(self, item: T) -> Iterator[msgspec.Struct]:
        yield from self._close(False)
        self.open = item
        yield from self.begun(item)

    def _close(self, cut: bool) -> Iterator[msgspec.Struct]:
        if self.open is not None:
            item = self.complete(self.open, "".join(self._parts), cut)
            yield from self.ended(item)
            self.done.append(item)
            self.open, self._parts = None, []

    @abstractmethod
    def text_item(self) -> T:
        """An item for text, empty."""

    @abstractmethod
    def call_item(self, call: CallPiece) -> T:
        """An item for a call, without its arguments."""

    @abstractmethod
    def complete(self, item: T, text: str, cut: bool) -> T:
        """An item with all of its text or arguments."""

    @abstractmethod
    def begun(self, item: T) -> Iterator[msgspec.Struct]:
        """Events that open an item."""

    @abstractmethod
    def grown(self, item: T, part: str) -> Iterator[msgspec.Struct]:
        """Events of a part of its text or arguments, which may be empty."""

    @abstractmethod
    def ended(self, item: T) -> Iterator[msgspec.Struct]:
        """Events that close an item."""
