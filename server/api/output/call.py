"""One client's call; no request survives its end, failure or disconnection."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from engine.messages import FinishReason, RowUpdate
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.stream import AT_ONCE, Shortcut
from scheduler.submission import Known
from server.access import spend_tokens
from server.api.errors import ApiError, bad_request, failure_error
from server.api.input.promise import ask_for
from server.api.input.prompts import Prompt
from server.api.input.sampling import MAX_LOGPROBS, foresee, is_scoring
from server.api.input.schema import TextBody
from server.api.output.reading import Piece, Reader, reader_of
from server.api.output.reply import LETTERS, Metrics, PromptDetails, Usage, expectation_of, weigh
from server.api.register import ESTIMATE, Record
from server.api.request_status import measure
from server.api.served_model import DISPATCHER, LIMITS
from server.api.ticket import check_tokens, submit


@dataclass(slots=True)
class Answer:
    """An answer, and how much of it was sent."""

    index: int
    prompt: Prompt
    request: Request
    reader: Reader  # finds tool calls
    begun: bool = False
    tokens: int = 0
    characters: int = 0
    weight: int = 0  # to encode so far, prompt included


@dataclass(frozen=True, slots=True)
class Part:
    answer: Answer
    update: RowUpdate
    pieces: Sequence[Piece]
    weight: int = 0  # to encode (`weigh`); the last may have the whole answer


@dataclass(frozen=True, slots=True)
class Call:
    """Answers in the order of their index."""

    answers: tuple[Answer, ...]
    record: Record
    dispatcher: Dispatcher
    scoring: bool  # only the prompt is wanted; the generated token is dropped

    @property
    def requests(self) -> tuple[Request, ...]:
        return self.record.requests

    def receive(self, place: int, update: RowUpdate) -> Part:
        """Raises ApiError when its row failed."""
        answer, ends = self.answers[place], update.finish_reason is not None
        if update.finish_reason is FinishReason.ERROR:
            self.record.check()
            error = update.error or "the answer could not be generated"
            if not update.by_client:
                raise failure_error(answer.request.failure, error)
            form = answer.prompt.grammar
            raise bad_request(error, *(None, None) if form is None else (form.param, "invalid_grammar"))
        weight = weigh(update) + (0 if answer.weight else len(answer.prompt.text) // LETTERS)
        answer.weight += weight
        if self.scoring:
            # Zero tokens were asked for.
            reason = FinishReason.LENGTH if ends else None
            update = replace(update, token_ids=(), text="", logprobs=(), finish_reason=reason, stop_reason=None)
        answer.tokens += len(update.token_ids)
        ended = answer.reader.ended
        pieces = answer.reader.push(update.text, last=ends)
        if answer.reader.ended and not ended and not ends:  # ended by a call although its text could go on
            self.dispatcher.cancel(answer.request)
            answer.request.stream.put(RowUpdate(answer.request.row_id, finish_reason=FinishReason.STOP))
        if update.finish_reason is FinishReason.LENGTH and answer.reader.whole:
            update = replace(update, finish_reason=FinishReason.STOP)
        return Part(answer, update, pieces, answer.weight if ends else weight)

    def usage(self) -> Usage:
        """A prompt and its cached tokens count once."""
        prompts = {id(answer.prompt): answer for answer in reversed(self.answers)}
        prompt_tokens = sum(len(answer.prompt.ids) for answer in prompts.values())
        cached_tokens = sum(answer.request.cached_prompt for answer in prompts.values())
        completion_tokens = sum(answer.tokens for answer in self.answers)
        details = PromptDetails(cached_tokens)
        return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)

    def metrics(self) -> Metrics:
        """From arrival, with the estimate if asked for."""
        told = measure(self.requests)
        if ESTIMATE not in self.record.asks:
            return told
        return replace(told, estimate=expectation_of(self.requests, self.dispatcher.now(), run=True))


@asynccontextmanager
async def open_call(
    body: TextBody, prompts: Sequence[Prompt], app: web.Application, record: Record, most: int = MAX_LOGPROBS
) -> AsyncIterator[Call]:
    """With `most` log-probabilities in all; leaving cancels it. Raises ApiError 400, 429, 499 or 503."""
    dispatcher, holder, answers = app[DISPATCHER], record.caller, list[Answer]()
    promise = Known() if body.promise is None else ask_for(body.promise, record.arrival, dispatcher.now())
    deadline = None if body.deadline_ms is None else record.arrival + body.deadline_ms / 1000
    try:
        # Nothing is submitted for a client that leaves meanwhile.
        known: Known = {**promise, "deadline": deadline, "program": record.program}
        async with foresee(body, prompts, app, record.client, holder, known, most=most) as wanted:
            record.check()
            check_tokens(sum(one.tokens for one in wanted), app[LIMITS], dispatcher)
            rows = [(one.submission, one.query, one.prediction) for one in wanted]
            record.requests = tuple(submit(app, record, rows))
            for one, request in zip(wanted, record.requests, strict=True):
                reader = reader_of(one.prompt.tools, guaranteed=one.prompt.grammar is not None)
                answers.append(Answer(len(answers), one.prompt, request, reader))
            call = Call(tuple(answers), record, dispatcher, is_scoring(body))
            spend_tokens(app, holder, call.usage().prompt_tokens)
            yield call
    finally:
        record.leave()
        spend_tokens(app, holder, sum(request.generated for request in record.requests))
        await dispatcher.cancel_all(record.requests)


Arrivals = Sequence[tuple[int, RowUpdate]]  # updates since the last look, by place of request

RECORDING_TIME = 5.0  # seconds that the last update may wait for the journal (--journal-sync)


@asynccontextmanager
async def read_updates(
    requests: Sequence[Request], shortcut: Shortcut | None = None
) -> AsyncIterator[AsyncIterator[Arrivals]]:
    """Until every request has ended, and is recorded where promised, else ApiError 503. `shortcut` takes a single
    request's updates.
    """
    arrived = asyncio.Queue[tuple[int, RowUpdate | ApiError]](len(requests))  # further updates join in the streams
    pumps: list[asyncio.Task[None]] = []
    requests[0].stream.shortcut = shortcut
    try:
        if len(requests) == 1:
            yield _single(requests[0])
        else:
            pumps += [asyncio.create_task(_pump(*pair, arrived)) for pair in enumerate(requests)]
            yield _merged(arrived, len(requests))
    finally:
        requests[0].stream.shortcut = None  # it references the connection
        await _end(pumps)


async def _end(pumps: Sequence[asyncio.Task[None]]) -> None:
    """A few at a time, so that everything else runs."""
    try:
        for place in range(0, len(pumps), AT_ONCE):
            some = pumps[place : place + AT_ONCE]
            for pump in some:
                pump.cancel()
            await asyncio.gather(*some, return_exceptions=True)
    finally:  # even if cancelled meanwhile
        for pump in pumps:
            pump.cancel()


async def _single(request: Request) -> AsyncIterator[Arrivals]:
    async for update in request.stream:
        await _until_recorded(request, update)
        yield [(0, update)]


async def _pump(place: int, request: Request, arrived: asyncio.Queue[tuple[int, RowUpdate | ApiError]]) -> None:
    try:
        async for update in request.stream:
            await _until_recorded(request, update)
            await arrived.put((place, update))
    except ApiError as error:
        await arrived.put((place, error))


async def _merged(arrived: asyncio.Queue[tuple[int, RowUpdate | ApiError]], unfinished: int) -> AsyncIterator[Arrivals]:
    while unfinished:
        coming = [await arrived.get()]
        while not arrived.empty():
            coming.append(arrived.get_nowait())
        updates = list[tuple[int, RowUpdate]]()
        for place, update in coming:
            if isinstance(update, ApiError):
                raise update
            unfinished -= update.finish_reason is not None
            updates.append((place, update))
        yield updates


async def _until_recorded(request: Request, update: RowUpdate) -> None:
    """Hold the last update until the journal has it."""
    if update.finish_reason is None or request.recorded is None:
        return
    with suppress(TimeoutError):
        if await asyncio.wait_for(asyncio.wrap_future(request.recorded), RECORDING_TIME):
            return
    raise ApiError(503, "the answer could not be recorded in the journal; try again later", code="journal_failed")
