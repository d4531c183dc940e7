"""Answers -> the HTTP response, whole or streamed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from scheduler.stream import Shortcut
from server.api.errors import ApiError, stream_error
from server.api.input.prompts import read_prompts
from server.api.input.sampling import cut_header
from server.api.input.schema import ChatBody, TextBody
from server.api.output import sse
from server.api.output.call import Call, Part, open_call, read_updates
from server.api.output.reading import CallPiece, Piece, try_json
from server.api.output.reply import SHORT_FORM, expectation_of, headers_of
from server.api.register import CALL, REGISTER, Record
from server.api.served_model import DISPATCHER, LIMITS, MODEL, ServedModel
from server.api.ticket import TICKET


class Words(ABC):
    end_marker: ClassVar[bool]  # whether [DONE] ends streams

    def opening(self) -> Iterable[msgspec.Struct]:
        return ()

    @abstractmethod
    def events(self, part: Part) -> Iterable[msgspec.Struct]:
        """May be none."""

    def waiting(self) -> Sequence[msgspec.Struct]:
        """Keep-alives, for clients that count events."""
        return ()

    def closing(self) -> Iterable[msgspec.Struct]:
        """Behind the last part of all answers."""
        return ()

    @abstractmethod
    def failed(self, error: ApiError) -> msgspec.Struct:
        """Last event of a failed stream: the status is already sent."""

    @abstractmethod
    def whole(self, answers: Sequence[Part]) -> msgspec.Struct:
        """Each answer is one part."""

    def shortcut(self, stream: sse.EventStream) -> Shortcut | None:
        """Sends text-only updates; None where events carry more."""
        return None


Wording = Callable[[Call, Any, ServedModel], Words]  # `Any`: the call's body


async def respond(request: web.Request, record: Record, body: TextBody, wording: Wording) -> web.StreamResponse:
    """Raises ApiError until the answer begins."""
    ticket, app = request[TICKET], request.app
    prompts = await read_prompts(body, app[MODEL], f"{record.client} {body.cache_salt}")
    if (answers := (body.n or 1) * len(prompts)) > 1:
        ticket.count_answers(answers)
    request[CALL] = record.id
    with app[REGISTER].enter(record):
        async with open_call(body, prompts, app, record) as call:
            words = wording(call, body, app[MODEL])
            ticket.settle()
            cut = cut_header(body, (one.sampling.max_tokens for one in call.requests))
            request[SHORT_FORM] = {**headers_of(expectation_of(call.requests, call.dispatcher.now())), **cut}
            if body.stream:
                progress = bool(body.stream_options and body.stream_options.include_progress)
                return await _stream(request, call, words, progress=progress or sse.HEADER in record.asks)
            reply = words.whole(await gather_answers(call))
            return await sse.send_reply(request, reply, sum(answer.weight for answer in call.answers))


async def gather_answers(call: Call) -> list[Part]:
    """One part an answer; raises ApiError when one fails."""
    updates: list[list[RowUpdate]] = [[] for _ in call.answers]
    pieces: list[list[Piece]] = [[] for _ in call.answers]
    async with read_updates(call.requests) as coming:
        async for arrivals in coming:
            for place, update in arrivals:
                part = call.receive(place, update)
                updates[place].append(part.update)
                pieces[place].extend(part.pieces)
    given = zip(call.answers, updates, pieces, strict=True)
    return [Part(answer, RowUpdate.join(own), said) for answer, own, said in given]


async def _stream(request: web.Request, call: Call, words: Words, *, progress: bool) -> web.StreamResponse:
    async with sse.EventStream(request, request.app[LIMITS], words.waiting) as stream:
        # On disconnection, leaving cancels the call.
        with suppress(ConnectionError):
            notes = sse.PlaceNotes(stream, call.requests, request.app[DISPATCHER])
            with sse.look_often(notes.look, sse.FIRST_LOOK, request.app[sse.LOOKS]) if progress else nullcontext():
                await _send(stream, request, call, words)
        return stream.response


async def _send(stream: sse.EventStream, request: web.Request, call: Call, words: Words) -> None:
    try:
        await stream.send(words.opening())
        async with read_updates(call.requests, words.shortcut(stream)) as updates:
            async for arrivals in updates:
                parts = [call.receive(*arrival) for arrival in arrivals]
                await stream.send(chain.from_iterable(map(words.events, parts)), sum(part.weight for part in parts))
                for part in parts:
                    if part.update.token_ids:
                        stream.note_sent(part.answer.request.stream.made)
        await stream.send(words.closing())
    except ConnectionError:
        raise
    except Exception as failure:
        await stream.send([words.failed(stream_error(failure, request))])
    if words.end_marker:
        await stream.forward(sse.DONE)


@dataclass(slots=True)
class Item:
    """A text, or a tool call, so far."""

    place: int
    call: CallPiece | None  # first piece; None for a text
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    parts: list[str] = field(default_factory=list)  # of text or arguments

    @property
    def text(self) -> str:
        return "".join(self.parts)


class ItemWords(Words):
    """Words a call's only answer as typed events; the last ends the stream."""

    end_marker = False

    def __init__(self, call: Call, body: ChatBody, model: ServedModel) -> None:
        self.call, self.model, self.items = call, model, list[Item]()

    def events(self, part: Part) -> Iterator[msgspec.Struct]:
        for piece in part.pieces:
            if isinstance(piece, CallPiece):
                if piece.id:
                    yield from self._begin(piece)
                text = piece.arguments
            else:
                if not self.items or self.items[-1].call is not None:
                    yield from self._begin(None)
                text = piece
            self.items[-1].parts.append(text)
            yield from self.grown(self.items[-1], text)
        if part.update.finish_reason is None:
            return
        if not self.items:  # an empty text
            yield from self._begin(None)
        last, cut = self.items[-1], part.update.finish_reason is FinishReason.LENGTH
        if cut and last.call is not None and isinstance(try_json(last.text), dict):
            cut = False  # behind a call that is complete
        yield from self._close("incomplete" if cut else "completed")
        yield from self.ending(part.update)

    def _begin(self, call: CallPiece | None) -> Iterator[msgspec.Struct]:
        if self.items:
            yield from self._close("completed")
        self.items.append(Item(len(self.items), call))
        yield from self.begun(self.items[-1])

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[msgspec.Struct]:
        self.items[-1].status = status
        yield from self.ended(self.items[-1])

    @abstractmethod
    def begun(self, item: Item) -> Iterable[msgspec.Struct]: ...

    @abstractmethod
    def grown(self, item: Item, part: str) -> Iterable[msgspec.Struct]:
        """May be an empty part."""

    @abstractmethod
    def ended(self, item: Item) -> Iterable[msgspec.Struct]: ...

    @abstractmethod
    def ending(self, update: RowUpdate) -> Iterable[msgspec.Struct]:
        """Ends the stream, with the answer's last update."""
