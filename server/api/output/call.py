"""One client's call: its answers, each a request to the scheduler, that begin and end together.

It knows no format. However a call ends, by its last token, a failure or a client that left, none of its requests
stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from scheduler.dispatcher import Dispatcher
from scheduler.request import Refused, Request, TooLate
from scheduler.stream import Shortcut, join_updates
from server.api.calls.register import Record
from server.api.calls.request_status import measure
from server.api.errors import ApiError, bad_request, busy, failure_error
from server.api.generator import DISPATCHER, LENGTHS
from server.api.input.prompts import Prompt
from server.api.input.schema import ChatBody, CompletionBody
from server.api.limits import LIMITS
from server.api.output.expectation import expectation_of
from server.api.output.large_json import LETTERS, weigh
from server.api.output.reply import Metrics, PromptDetails, Usage
from server.api.output.wanted import (
    Predictions,
    WantedAnswer,
    describe,
    draw_seeds,
    expected_tokens,
    is_scoring,
    length_scope,
    predict,
)
from server.api.served_model import MODEL
from server.api.ticket import check_tokens
from server.api.tools.reading import Piece, Reader, reader_of
from server.http.access import spend_tokens


@dataclass(slots=True)
class Answer:
    """One answer under way, and how much of it the client has been sent."""

    index: int
    prompt: Prompt
    request: Request
    reader: Reader
    """Finds the calls of tools in its text."""
    begun: bool = False
    tokens: int = 0
    characters: int = 0
    weight: int = 0
    """How long what has not been sent takes to encode, its prompt's text included, as that may be shown."""

    def take_weight(self) -> int:
        """The weight, of what is sent from now on."""
        weight, self.weight = self.weight, 0
        return weight


@dataclass(frozen=True, slots=True)
class Part:
    """The next part of an answer as its client shall see it: an update, and what its text says and calls."""

    answer: Answer
    update: RowUpdate
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Call:
    """Answers to the same client, in the order of their index."""

    answers: tuple[Answer, ...]
    record: Record
    dispatcher: Dispatcher
    scoring: bool
    """Whether only the prompt is wanted back: what had to be generated is then left out."""

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(answer.request for answer in self.answers)

    def receive(self, place: int, update: RowUpdate) -> Part:
        """Count an update as sent and read it; raises ApiError when its row failed."""
        answer = self.answers[place]
        if update.finish_reason is FinishReason.ERROR:
            self.record.check()
            error = update.error or "the answer could not be generated"
            raise bad_request(error) if update.by_client else failure_error(answer.request.failure, error)
        answer.weight += weigh(update)
        if self.scoring:
            # No token was asked for, so the answer ends because its length, zero, is reached.
            reason = None if update.finish_reason is None else FinishReason.LENGTH
            update = replace(update, token_ids=(), text="", logprobs=(), finish_reason=reason, stop_reason=None)
        answer.tokens += len(update.token_ids)
        ended = answer.reader.ended
        pieces = answer.reader.push(update.text, last=update.finish_reason is not None)
        if answer.reader.ended and not ended and update.finish_reason is None:
            self._end(answer.request)
        return Part(answer, update, pieces)

    def _end(self, request: Request) -> None:
        """End an answer whose text could go on."""
        self.dispatcher.cancel(request)
        request.stream.put(RowUpdate(request.row_id, finish_reason=FinishReason.STOP))  # the client still reads

    def usage(self) -> Usage:
        """Tokens so far; a prompt counts once, however many answers it has, and so does what was kept of it before."""
        prompts = {id(answer.prompt): answer for answer in reversed(self.answers)}
        prompt_tokens = sum(len(answer.prompt.ids) for answer in prompts.values())
        cached_tokens = sum(answer.request.cached_prompt for answer in prompts.values())
        completion_tokens = sum(answer.tokens for answer in self.answers)
        details = PromptDetails(cached_tokens)
        return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)

    def metrics(self) -> Metrics:
        """Times of the call, from its arrival on, and what was expected of it if its client asks."""
        told = measure(self.requests)
        return (
            msgspec.structs.replace(told, estimate=expectation_of(self.requests))
            if self.record.tells_estimate
            else told
        )


@asynccontextmanager
async def open_call(
    body: ChatBody | CompletionBody, listed: Sequence[WantedAnswer], app: web.Application, record: Record
) -> AsyncIterator[Call]:
    """Submit the listed answers of a call, and note them in its record; on leaving, cancel what has not ended.

    Raises ApiError 400, 429, 499 or 503.
    """
    wanted = draw_seeds(listed, body, app[MODEL])
    scope = length_scope(record.caller.holder, body.cache_salt)
    async with predict(wanted, app[LENGTHS], scope) as predictions:  # a client that leaves meanwhile has cost nothing
        record.check()
        tokens = sum(expected_tokens(item, predictions[id(item.prompt)]) for item in wanted)
        check_tokens(tokens, app[LIMITS], app[DISPATCHER])
        async with _submit_all(wanted, predictions, body, app, record, scope) as answers:
            call = Call(answers, record, app[DISPATCHER], is_scoring(body))
            record.requests = call.requests
            spend_tokens(app, record.caller.holder, call.usage().prompt_tokens)
            try:
                yield call
            finally:
                spend_tokens(app, record.caller.holder, sum(each.generated for each in call.requests))


@asynccontextmanager
async def _submit_all(
    wanted: Sequence[WantedAnswer],
    predictions: Predictions,
    body: ChatBody | CompletionBody,
    app: web.Application,
    record: Record,
    scope: str,
) -> AsyncIterator[tuple[Answer, ...]]:
    """Submit a request for each answer; on leaving, cancel what has not ended."""
    dispatcher, lengths = app[DISPATCHER], app[LENGTHS]
    answers: list[Answer] = []
    try:
        for item in wanted:
            prediction = predictions[id(item.prompt)]
            request = dispatcher.submit(
                item.prompt.ids,
                item.sampling,
                deadline=None if body.deadline_ms is None else record.arrival + body.deadline_ms / 1000,
                arrival=record.arrival,
                **describe(item, prediction, body, app, record.client, record.caller.holder),
            )
            lengths.note(request, item.query(scope), prediction, dispatcher.revise)
            reader = reader_of(item.prompt.tools, guaranteed=item.prompt.grammar is not None)
            weight = len(item.prompt.text) // LETTERS
            answers.append(Answer(len(answers), item.prompt, request, reader, weight=weight))
        yield tuple(answers)
    except TooLate as error:
        message = f"{error}; try again later, or give it more time"
        raise busy(message, "deadline_unreachable", dispatcher.retry_after()) from None
    except Refused as error:
        raise failure_error(error.failure, str(error)) from None
    finally:
        for answer in answers:
            dispatcher.cancel(answer.request)


Arrivals: TypeAlias = Mapping[int, RowUpdate]
"""Updates since the last look: the place of a request among those asked for -> its update."""

RECORDING_TIME = 5.0
"""Seconds that the end of an answer is held back at most until it is recorded (--journal-sync)."""


class Updates:
    """Iterates until every request has had its last update, which is recorded by then where that is promised.

    Use as an asynchronous context. Raises ApiError 503 when that cannot be kept.
    """

    def __init__(self, requests: Sequence[Request], shortcut: Shortcut | None = None) -> None:
        """`shortcut` takes updates of a single request past the reader."""
        self._requests = requests
        self._shortcut = shortcut
        self._arrivals: dict[int, RowUpdate] = {}
        self._arrived = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Updates:
        # A single stream is read directly: a task between would cost a switch per token.
        if len(self._requests) > 1:
            self._pumps = [asyncio.create_task(self._pump(*pair)) for pair in enumerate(self._requests)]
        else:
            self._requests[0].stream.shortcut = self._shortcut
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests[0].stream.shortcut = None  # it holds the connection, and requests are remembered
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[Arrivals]:
        return self._merged() if self._pumps else self._single()

    async def _single(self) -> AsyncIterator[Arrivals]:
        async for update in self._requests[0].stream:
            await _until_recorded(self._requests[0], update)
            yield {0: update}

    async def _merged(self) -> AsyncIterator[Arrivals]:
        unfinished = len(self._requests)
        while unfinished:
            await self._arrived.wait()
            self._arrived.clear()
            arrivals, self._arrivals = self._arrivals, {}
            if not arrivals:
                self._raise_failure()
                continue
            unfinished -= sum(update.finish_reason is not None for update in arrivals.values())
            yield arrivals

    async def _pump(self, place: int, request: Request) -> None:
        try:
            async for update in request.stream:
                await _until_recorded(request, update)
                earlier = self._arrivals.get(place)
                self._arrivals[place] = update if earlier is None else join_updates((earlier, update))
                self._arrived.set()
        finally:
            self._arrived.set()

    def _raise_failure(self) -> None:
        for pump in self._pumps:
            if pump.done():
                pump.result()


async def _until_recorded(request: Request, update: RowUpdate) -> None:
    """Hold the last update of a request back until the journal has it; raises ApiError."""
    if update.finish_reason is None or request.recorded is None:
        return
    with suppress(TimeoutError):
        if await asyncio.wait_for(asyncio.wrap_future(request.recorded), RECORDING_TIME):
            return
    raise ApiError(503, "the answer could not be recorded in the journal; try again later", code="journal_failed")
