"""Prompts -> the HTTP response with their answers, whole or streamed.

It knows no endpoint's format; its Words make the bodies and the events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Protocol

import msgspec
from aiohttp import web

from engine.messages import RowUpdate
from scheduler.stream import Shortcut, join_updates
from server.api.errors import ApiError, internal_error
from server.api.generator import DISPATCHER
from server.api.input.body import is_asked
from server.api.input.prompts import Prompt
from server.api.input.schema import ChatBody, CompletionBody
from server.api.limits import LIMITS
from server.api.output.call import Call, Part, Updates, open_call
from server.api.output.reading import Piece
from server.api.output.reply import SHORT_FORM, expectation_of, headers_of
from server.api.output.sse import FIRST_LOOK, HEADER, TICKER, EventStream, PlaceNotes, send_reply
from server.api.output.wanted import list_wanted
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import MODEL
from server.api.ticket import TICKET
from server.http.request_id import request_id

log = logging.getLogger(__name__)


class Words(Protocol):
    """The wording of one call's answers in an API, as a whole body or as the events of a stream."""

    end_marker: bool
    """Whether [DONE] ends its streams."""
    repeats: bool
    """Whether the events of an answer's last part have all of the answer again."""

    def opening(self) -> Iterable[msgspec.Struct]:
        """Events before the first token."""
        ...

    def events(self, parts: Sequence[Part]) -> Iterable[msgspec.Struct]:
        """Events of the next parts of answers; none where they show the client nothing."""
        ...

    def closing(self) -> Iterable[msgspec.Struct]:
        """Events behind the last part of all answers."""
        ...

    def failed(self, error: ApiError) -> msgspec.Struct:
        """The last event of a stream that failed, as the status is sent by then."""
        ...

    def whole(self, answers: Sequence[Part]) -> msgspec.Struct:
        """The body of a reply with all answers at once, each of which is one part."""
        ...

    def shortcut(self, stream: EventStream) -> Shortcut | None:
        """Sends updates that only add text; None where events tell more."""
        ...


async def respond(
    request: web.Request,
    record: Record,
    body: ChatBody | CompletionBody,
    prompts: Sequence[Prompt],
    words: Callable[[Call], Words],
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
    async with Updates(call.requests) as coming:
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
            with request.app[TICKER].follow(notes.look, first) if progress else nullcontext():
                await _send(stream, request, call, words)
        return stream.response


async def _send(stream: EventStream, request: web.Request, call: Call, words: Words) -> None:
    """Send everything from the first event to the last."""
    try:
        await stream.send(words.opening())
        async with Updates(call.requests, words.shortcut(stream)) as updates:
            async for arrivals in updates:
                parts = [call.receive(place, update) for place, update in arrivals.items()]
                await stream.send(words.events(parts), sum(_weight(part, words) for part in parts))
        await stream.send(words.closing())
    except ConnectionError:
        raise
    except ApiError as error:
        await stream.send([words.failed(error)])
    except Exception:
        log.exception("request %s failed in its stream", request_id(request))
        await stream.send([words.failed(internal_error(request))])
    if words.end_marker:
        await stream.done()


def _weight(part: Part, words: Words) -> int:
    return part.answer.weight if words.repeats and part.update.finish_reason is not None else part.weight
