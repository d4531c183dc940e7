"""Prompts -> the HTTP response with their answers, whole or streamed.

It knows no endpoint's format; Words make the bodies and the events.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from typing import ClassVar

import msgspec
from aiohttp import web

from engine.messages import RowUpdate
from scheduler.stream import Shortcut, join_updates
from server.api.errors import ApiError, internal_error
from server.api.input.prompts import Prompt
from server.api.input.schema import TextBody
from server.api.limits import LIMITS
from server.api.output.call import Call, Part, open_call, read_updates
from server.api.output.reading import Piece
from server.api.output.reply import SHORT_FORM, expectation_of, headers_of
from server.api.output.sse import (
    DONE,
    FIRST_LOOK,
    HEADER,
    LOOKS,
    EventStream,
    PlaceNotes,
    look_often,
    send_reply,
)
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import DISPATCHER
from server.api.ticket import TICKET
from server.http.request_id import request_id

log = logging.getLogger(__name__)


class Words(ABC):
    """The wording of one call's answers in an API, as a whole body or as the events of a stream."""

    end_marker: ClassVar[bool]
    """Whether [DONE] ends its streams."""

    def opening(self) -> Iterable[msgspec.Struct]:
        """Events before the first token."""
        return ()

    @abstractmethod
    def events(self, part: Part) -> Iterable[msgspec.Struct]:
        """Events of an answer's next part; none where it shows the client nothing."""

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
    ticket, app, answers = request[TICKET], request.app, (body.n or 1) * len(prompts)
    if answers > 1:
        ticket.count_answers(answers)
    request[CALL] = record.id
    with app[REGISTER].enter(record):
        async with open_call(body, prompts, app, record) as call:
            ticket.settle()
            request[SHORT_FORM] = headers_of(expectation_of(call.requests))
            if body.stream:
                progress = bool(body.stream_options and body.stream_options.include_progress)
                return await _stream(request, call, words(call), progress=progress or HEADER in record.asks)
            reply = words(call).whole(await gather_answers(call))
            return await send_reply(request, reply, sum(answer.weight for answer in call.answers))


async def gather_answers(call: Call) -> list[Part]:
    """Wait for all answers of a call, and make each one part; raises ApiError when one fails."""
    updates: list[list[RowUpdate]] = [[] for _ in call.answers]
    pieces: list[list[Piece]] = [[] for _ in call.answers]
    async with read_updates(call.requests) as coming:
        async for arrivals in coming:
            for place, update in arrivals:
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
                parts = [call.receive(*arrival) for arrival in arrivals]
                await stream.send(chain.from_iterable(map(words.events, parts)), sum(part.weight for part in parts))
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
