"""Prompts -> the HTTP response with their answers, whole or streamed.

It knows no endpoint's format; a Form makes the bodies, a ReplyWriter the stream.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
import orjson
from aiohttp import web

from engine.messages import RowUpdate
from scheduler.stream import Shortcut, join_updates
from server.api.calls.register import CALL, REGISTER, Caller, Record
from server.api.errors import ApiError, error_body, internal_error
from server.api.generator import DISPATCHER
from server.api.input.prompts import Prompt
from server.api.input.schema import ChatBody, CompletionBody, StreamOptions
from server.api.limits import LIMITS
from server.api.output.call import Answer, Call, Part, Updates, open_call
from server.api.output.expectation import SHORT_FORM, expectation_of, headers_of
from server.api.output.large_json import send_reply, weigh
from server.api.output.progress import FIRST_LOOK, HEADER, PlaceNotes, is_asked
from server.api.output.reply import Head, Metrics, Usage
from server.api.output.sse import TICKER, EventStream, frame
from server.api.output.wanted import list_wanted
from server.api.served_model import MODEL
from server.api.ticket import TICKET
from server.api.tools.reading import Piece, PlainText, TextPiece
from server.http.access import client_of, holder_of
from server.http.request_id import request_id

log = logging.getLogger(__name__)

ESTIMATE = "x-lengthwise-estimate"
"""Request header by which a client asks that `metrics` tell what was expected of its call, with the value 1."""


@dataclass(frozen=True, slots=True)
class Result:
    """An answer that has ended, and its updates in order: one at least, the last with the finish reason."""

    answer: Answer
    updates: list[RowUpdate]
    pieces: list[Piece]

    def join(self) -> Part:
        """All parts of the answer as one."""
        return Part(self.answer, join_updates(self.updates), self.pieces)


class Form(Protocol):
    """The wording of one endpoint's answers."""

    @property
    def head(self) -> Head: ...

    def events(self, part: Part, usage: Usage | None) -> Iterable[msgspec.Struct]:
        """Events of a part; none where it shows the client nothing."""
        ...

    def closing(self, usage: Usage, metrics: Metrics) -> msgspec.Struct:
        """The event with the token counts of the whole call."""

    def whole(self, results: Sequence[Result], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        """The body of a reply with all answers at once."""


async def respond(
    request: web.Request, body: ChatBody | CompletionBody, prompts: Sequence[Prompt], form: Form
) -> web.StreamResponse:
    """Generate what the body asks for and answer the client; raises ApiError until the answer begins."""
    async with register_call(request, body, prompts, form.head) as call:
        if body.stream:
            options = body.stream_options or StreamOptions()
            return await stream_answers(request, call, FormWriter(call, form, options), options)
        reply = form.whole(await gather_answers(call), call.usage(), call.metrics())
        return await send_reply(request, reply, sum(answer.take_weight() for answer in call.answers))


@asynccontextmanager
async def register_call(
    request: web.Request, body: ChatBody | CompletionBody, prompts: Sequence[Prompt], head: Head
) -> AsyncIterator[Call]:
    """Put a call in line, and in the register until the context is left. Raises ApiError."""
    is_asked(request, HEADER)  # which may be refused, whether it is a stream or not
    answers = (body.n or 1) * len(prompts)
    ticket = request[TICKET]
    ticket.count_answers(answers)
    caller = Caller(holder_of(request), request_id(request))
    record = Record(
        head.id,
        caller,
        request.path,
        head.model,
        head.created,
        bool(body.stream),
        head.arrival,
        client=client_of(request, body.user),
        tells_estimate=is_asked(request, ESTIMATE),
    )
    request[CALL] = record.id
    with request.app[REGISTER].enter(record):
        wanted = list_wanted(body, prompts, request.app[MODEL])
        async with open_call(body, wanted, request.app, record) as call:
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of(call.requests))
            yield call


async def gather_answers(call: Call) -> list[Result]:
    """Wait for all answers of a call; raises ApiError when one fails."""
    results = [Result(answer, [], []) for answer in call.answers]
    async with Updates(call.requests) as updates:
        async for arrivals in updates:
            for place, update in arrivals.items():
                part = call.receive(place, update)
                results[place].updates.append(part.update)
                results[place].pieces.extend(part.pieces)
    return results


class ReplyWriter(Protocol):
    """The wording of one endpoint's streams."""

    async def write(self, stream: EventStream) -> None:
        """Send everything from the first event to the last; raises ApiError when an answer fails."""

    async def fail(self, stream: EventStream, error: ApiError) -> None:
        """Send an end for a stream that failed, as the status is sent by now."""


async def stream_answers(
    request: web.Request, call: Call, writer: ReplyWriter, options: StreamOptions
) -> web.StreamResponse:
    """Send a call's answers as they come, and its place in line before if the client asks for that; raises ApiError."""
    limits, progress = request.app[LIMITS], is_asked(request, HEADER) or options.include_progress
    async with EventStream(request, limits) as stream:
        # When the client is gone, leaving cancels what runs.
        with suppress(ConnectionError):
            notes = PlaceNotes(stream, call.requests, request.app[DISPATCHER], limits.place_interval)
            first = min(FIRST_LOOK, limits.place_interval)
            with request.app[TICKER].follow(notes.look, first) if progress else nullcontext():
                await _write(stream, request, writer)
        return stream.response


async def _write(stream: EventStream, request: web.Request, writer: ReplyWriter) -> None:
    try:
        await writer.write(stream)
    except ApiError as error:
        await writer.fail(stream, error)
    except ConnectionError:
        raise
    except Exception:
        log.exception("request %s failed in its stream", request_id(request))
        await writer.fail(stream, internal_error(request))


@dataclass(frozen=True, slots=True)
class FormWriter:
    """A stream of what a form makes of each update, then the token counts if they are wanted, then the end marker."""

    call: Call
    form: Form
    options: StreamOptions

    async def write(self, stream: EventStream) -> None:
        async with Updates(self.call.requests, self._shortcut(stream)) as updates:
            async for arrivals in updates:
                parts = [self.call.receive(place, update) for place, update in arrivals.items()]
                await stream.send(self._events(parts), sum(part.answer.take_weight() for part in parts))
        if self.options.include_usage:
            await stream.send([self.form.closing(self.call.usage(), self.call.metrics())])
        await stream.done()

    async def fail(self, stream: EventStream, error: ApiError) -> None:
        await stream.send([error_body(error)])
        await stream.done()

    def _shortcut(self, stream: EventStream) -> Shortcut | None:
        """Sends what only adds text; None where events tell more, or of several answers."""
        first, *others = self.call.answers
        plain = isinstance(first.reader, PlainText) and not self.call.scoring
        if others or not plain or self.options.continuous_usage_stats:
            return None
        return TextFrames(first, self.form, stream).send

    def _events(self, parts: Sequence[Part]) -> Iterator[msgspec.Struct]:
        usage = self.call.usage() if self.options.continuous_usage_stats else None
        return (event for part in parts for event in self.form.events(part, usage))


MARK = "the text of an event, of which all others of its answer differ in nothing else"


class TextFrames:
    """Events that only add text to an answer: the frame of the first one, each with another text in it."""

    def __init__(self, answer: Answer, form: Form, stream: EventStream) -> None:
        self._answer, self._form, self._stream = answer, form, stream
        self._around: tuple[bytes, ...] = ()  # the bytes before and behind the text

    def send(self, update: RowUpdate) -> bool:
        """Send an update at once, as a Shortcut; False for an answer's first, and one that brings more than text."""
        if not update.text or not self._answer.begun or update.finish_reason is not None or update.logprobs:
            return False
        if not self._around:
            part = Part(self._answer, RowUpdate(update.row_id, text=MARK), [TextPiece(MARK)])
            self._around = tuple(frame(self._form.events(part, None)).split(orjson.dumps(MARK)))
        before, after = self._around
        if not self._stream.send_now(before + orjson.dumps(update.text) + after):
            return False
        self._answer.tokens += len(update.token_ids)
        return True


class ItemWords(Protocol):
    """The wording of one answer as typed events, of which the last is the end marker."""

    def opening(self) -> Iterable[msgspec.Struct]:
        """Events before the first token."""
        ...

    def events(self, part: Part) -> Iterable[msgspec.Struct]:
        """Events of a part; those of the last part end the stream."""
        ...

    def failed(self, error: ApiError) -> msgspec.Struct:
        """The last event of a stream that failed."""
        ...


@dataclass(frozen=True, slots=True)
class ItemWriter:
    """A stream of the typed events of a call's only answer."""

    call: Call
    words: ItemWords

    async def write(self, stream: EventStream) -> None:
        await stream.send(self.words.opening())
        async with Updates(self.call.requests) as updates:
            async for arrivals in updates:
                part = self.call.receive(0, arrivals[0])
                ends = part.update.finish_reason is not None  # with events that have all of the answer again
                await stream.send(self.words.events(part), part.answer.weight if ends else weigh(part.update))

    async def fail(self, stream: EventStream, error: ApiError) -> None:
        await stream.send([self.words.failed(error)])
