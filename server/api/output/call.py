"""One client's call: its answers, each a request to the scheduler, that begin and end together.

It knows no format. However a call ends, by its last token, a failure or a client that left, none of its requests
stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from engine.messages import FinishReason, RowUpdate
from engine.sampling.params import SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.oracle import NoReplay
from scheduler.length.prediction import Prediction
from scheduler.request import Refused, Request, State, TooLate
from server.api.calls.register import Record
from server.api.calls.request_status import measure
from server.api.errors import bad_request, busy, failure_error
from server.api.generator import DISPATCHER, LENGTHS, AnswerLengths
from server.api.input.admission import check_tokens
from server.api.input.hints import HINTS
from server.api.input.prompts import Prompt
from server.api.input.sampling import for_prompt, is_scoring, sampling_params, with_seed
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody
from server.api.limits import LIMITS
from server.api.output.expectation import expectation_of
from server.api.output.pieces import LETTERS, weigh
from server.api.output.reply import Metrics, PromptDetails, Usage
from server.api.served_model import MODEL, ServedModel
from server.http.access import spend_tokens

MAX_LOGPROBS = 2**20
"""Log-probabilities, alternatives included, that one call may have kept for it."""

Predictions: TypeAlias = Mapping[int, Prediction | None]
"""The prediction for each distinct prompt of a call, by the prompt's id."""


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """One answer that is wanted."""

    prompt: Prompt
    sampling: SamplingParams

    @property
    def query(self) -> LengthQuery:
        """The prompt's parts and bounds from which the length of the answer is predicted."""
        prompt, most = self.prompt, self.sampling.max_tokens
        split = prompt.split
        return LengthQuery(split.instruction, split.user_input, prompt.user_input_length, most, prompt.text_ids)


@dataclass(slots=True)
class Answer:
    """One answer under way, and how much of it the client has been sent."""

    index: int
    prompt: Prompt
    request: Request
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
class Call:
    """Answers to the same client, in the order of their index."""

    answers: tuple[Answer, ...]
    record: Record
    scoring: bool
    """Whether only the prompt is wanted back: what had to be generated is then left out."""

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(answer.request for answer in self.answers)

    def receive(self, place: int, update: RowUpdate) -> RowUpdate:
        """Count an update as sent and return it as the client shall see it; raises ApiError when its row failed."""
        if update.finish_reason is FinishReason.ERROR:
            self.record.check()
            error = update.error or "the answer could not be generated"
            raise bad_request(error) if update.by_client else failure_error(self.answers[place].request.failure, error)
        self.answers[place].weight += weigh(update)
        if self.scoring:
            # No token was asked for, so the answer ends because its length, zero, is reached.
            reason = None if update.finish_reason is None else FinishReason.LENGTH
            return replace(update, token_ids=(), text="", logprobs=(), finish_reason=reason, stop_reason=None)
        self.answers[place].tokens += len(update.token_ids)
        return update

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


def list_wanted(
    body: ChatBody | CompletionBody, prompts: Sequence[Prompt], model: ServedModel, most: int = MAX_LOGPROBS
) -> list[WantedAnswer]:
    """The answers that a body asks for, n to each prompt, without their seeds, and `most` log-probabilities in all;
    raises ApiError 400."""
    choices = body.n or 1
    if choices * len(prompts) > MAX_CHOICES:
        message = f"n: {choices} answers to each of {len(prompts)} prompts are more than {MAX_CHOICES} in one request"
        raise bad_request(message, "n")
    common = sampling_params(body, model, len(prompts[0].ids))
    wanted = []
    for prompt in prompts:
        # The prompt holds on to its compiled grammar for as long as the call lasts.
        grammar = None if prompt.grammar is None else prompt.grammar.grammar
        sampling = replace(for_prompt(common, body, model, len(prompt.ids)), grammar=grammar)
        wanted += [WantedAnswer(prompt, sampling)] * choices
    _bound_logprobs(body, wanted, most)
    return wanted


def draw_seeds(
    wanted: Sequence[WantedAnswer], body: ChatBody | CompletionBody, model: ServedModel
) -> list[WantedAnswer]:
    """The answers with their seeds, drawn once no body can be refused any more: --seed makes them a sequence."""
    seeds = [model.defaults.next_seed() if body.seed is None else body.seed for _ in wanted]
    return [
        replace(item, sampling=with_seed(item.sampling, seed, place % (body.n or 1)))
        for place, (item, seed) in enumerate(zip(wanted, seeds, strict=True))
    ]


def _bound_logprobs(body: ChatBody | CompletionBody, wanted: Sequence[WantedAnswer], most: int) -> None:
    """Raise ApiError 400 where the log-probabilities that have to be kept until they are sent are more than `most`."""
    prompted = sum(len(item.prompt.ids) * (1 + (item.sampling.prompt_logprobs or 0)) for item in wanted)
    generated = sum(item.sampling.max_tokens * (1 + (item.sampling.logprobs or 0)) for item in wanted)
    asked = {
        "prompt_logprobs": prompted if wanted[0].sampling.prompt_logprobs is not None else 0,
        "logprobs": generated if wanted[0].sampling.logprobs is not None and not body.stream else 0,
    }
    if sum(asked.values()) > most:
        name = max(asked, key=asked.__getitem__)
        remedy = "ask for fewer alternatives, prompts or answers" + (
            ", or set max_tokens" if name == "logprobs" else ""
        )
        message = f"{name}: {sum(asked.values())} log-probabilities are more than {most} in one request"
        raise bad_request(f"{message}; {remedy}", name)


@asynccontextmanager
async def open_call(
    body: ChatBody | CompletionBody, listed: Sequence[WantedAnswer], app: web.Application, record: Record
) -> AsyncIterator[Call]:
    """Submit the listed answers of a call, and note them in its record; on leaving, cancel what has not ended.

    Raises ApiError 400, 429, 499 or 503.
    """
    wanted = draw_seeds(listed, body, app[MODEL])
    async with predict(wanted, app[LENGTHS]) as predictions:  # a client that leaves meanwhile has cost nothing
        record.check()
        tokens = sum(_tokens(item, predictions[id(item.prompt)]) for item in wanted)
        check_tokens(tokens, app[LIMITS], app[DISPATCHER])
        async with _submit_all(wanted, predictions, body, app, record) as answers:
            call = Call(answers, record, is_scoring(body))
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
) -> AsyncIterator[tuple[Answer, ...]]:
    """Submit a request for each answer; on leaving, cancel what has not ended."""
    dispatcher, lengths, objectives = app[DISPATCHER], app[LENGTHS], record.objectives
    first_token_by = None if objectives.first_token is None else record.arrival + objectives.first_token
    answers: list[Answer] = []
    try:
        for item in wanted:
            prediction = predictions[id(item.prompt)]
            request = dispatcher.submit(
                item.prompt.ids,
                item.sampling,
                deadline=None if body.deadline_ms is None else record.arrival + body.deadline_ms / 1000,
                first_token_by=first_token_by,
                seconds_per_token=objectives.per_token,
                arrival=record.arrival,
                **describe(item, prediction, body, app, record.client, record.caller.holder),
            )
            lengths.note(request, item.query, prediction, dispatcher.revise)
            answers.append(Answer(len(answers), item.prompt, request, weight=len(item.prompt.text) // LETTERS))
        yield tuple(answers)
    except TooLate as error:
        message = f"{error}; try again later, or give it more time"
        raise busy(message, "deadline_unreachable", dispatcher.retry_after()) from None
    except Refused as error:
        raise failure_error(error.failure, str(error)) from None
    finally:
        for answer in answers:
            dispatcher.cancel(answer.request)
            if answer.request.state is State.FINISHED:
                prediction, length = predictions[id(answer.prompt)], answer.request.generated
                app[HINTS].learn(record.client, body.foretold_length, prediction, length)


def describe(
    item: WantedAnswer,
    prediction: Prediction | None,
    body: ChatBody | CompletionBody,
    app: web.Application,
    client: str,
    holder: str | None,
) -> dict[str, Any]:
    """Arguments of the dispatcher's `submit` and `estimate` besides the prompt: priority, client, predicted length."""
    foreseen = app[HINTS].weigh(client, body.foretold_length, prediction)
    return {
        "priority": body.priority or 0,
        "client": client,
        "predicted_length": None if foreseen is None else foreseen.length,
        "distribution": None if foreseen is None else foreseen.distribution,
        "cache_scope": _cache_scope(None if app[MODEL].defaults.shares_prefixes else holder, body.cache_salt),
    }


def _cache_scope(holder: str | None, salt: str | None) -> str:
    """The name under which prompts of an API key's holder, and of the client's salt, are kept for each other."""
    return (holder or "") + (f" {salt}" if salt else "")


def _tokens(item: WantedAnswer, prediction: Prediction | None) -> int:
    """Tokens of an answer and its prompt, as far as they can be foreseen."""
    return len(item.prompt.ids) + _answer_tokens(item, prediction)


def _answer_tokens(item: WantedAnswer, prediction: Prediction | None) -> int:
    most = item.sampling.max_tokens
    return most if prediction is None else min(most, int(prediction.length))


async def expected_work(wanted: Sequence[WantedAnswer], app: web.Application) -> float:
    """The price of a call's prompts and answers, as far as they can be foreseen; raises ApiError 400."""
    prices = app[DISPATCHER].load().prices
    async with predict(wanted, app[LENGTHS]) as predictions:
        read = [len(item.prompt.ids) for item in wanted]
        made = [_answer_tokens(item, predictions[id(item.prompt)]) for item in wanted]
        return sum(prices.price(tokens, tokens, answer) for tokens, answer in zip(read, made, strict=True))


@asynccontextmanager
async def predict(wanted: Sequence[WantedAnswer], lengths: AnswerLengths) -> AsyncIterator[Predictions]:
    """Predict the length of each distinct prompt's answer; on leaving, forget what has not come in time."""
    distinct = {id(item.prompt): item for item in wanted}
    asked = [asyncio.ensure_future(lengths.predict(item.query, item.sampling)) for item in distinct.values()]
    try:
        try:
            predictions = await asyncio.gather(*asked)
        except NoReplay as error:
            raise bad_request(f"replay_tokens: {error}", "replay_tokens") from None
        yield dict(zip(distinct, predictions, strict=True))
    finally:
        for future in asked:
            _forget(future)


def _forget(asked: asyncio.Future[Prediction | None]) -> None:
    """Forget a prediction that has come; one that has not was cancelled together with its caller."""
    if asked.done() and not asked.cancelled() and asked.exception() is None:
        prediction = asked.result()
        if prediction is not None:
            prediction.forget()
