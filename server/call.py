"""One client's call: its answers, each a request to the scheduler, that begin and end together.

It knows no format. However a call ends, by its last token, a failure or a client that left, none of its requests
stays behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from engine.messages import FinishReason, RowUpdate, SamplingParams
from scheduler.dispatcher import Refused
from scheduler.length.features import LengthQuery
from scheduler.length.front import Prediction
from scheduler.length.oracle import NoReplay
from scheduler.request import Request
from server.errors import ApiError, bad_request
from server.prompts import Prompt
from server.reply import Metrics, Usage
from server.sampling import is_scoring, sampling_params, seeded
from server.schema import MAX_CHOICES, ChatBody, CompletionBody
from server.service import Service


@dataclass(frozen=True, slots=True)
class Order:
    """One answer that is wanted."""

    prompt: Prompt
    sampling: SamplingParams

    @property
    def query(self) -> LengthQuery:
        """What the length of the answer is predicted from."""
        split = self.prompt.split
        length, most = self.prompt.user_input_length, self.sampling.max_tokens
        return LengthQuery(split.instruction, split.user_input, length, most)


@dataclass(slots=True)
class Answer:
    """One answer under way, and how much of it the client has been told."""

    index: int
    prompt: Prompt
    request: Request
    begun: bool = False
    tokens: int = 0
    characters: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """Answers to the same client, in the order of their index."""

    answers: tuple[Answer, ...]
    scoring: bool
    """Whether only the prompt is wanted back: what had to be generated is then left out."""

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(answer.request for answer in self.answers)

    def receive(self, place: int, update: RowUpdate) -> RowUpdate:
        """Book an update as told and return it as the client shall see it; raises ApiError when its row failed."""
        if update.finish_reason is FinishReason.ERROR:
            raise ApiError(500, update.error or "the answer could not be generated", code="generation_failed")
        if self.scoring:
            return replace(update, token_ids=(), text="", logprobs=(), finish_reason=_scored(update), stop_reason=None)
        self.answers[place].tokens += len(update.token_ids)
        return update

    def usage(self) -> Usage:
        """Tokens so far; a prompt counts once, however many answers it has."""
        prompts = {id(answer.prompt): len(answer.prompt.ids) for answer in self.answers}
        prompt_tokens, completion_tokens = sum(prompts.values()), sum(answer.tokens for answer in self.answers)
        return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)

    def metrics(self) -> Metrics:
        """Times of the call from its arrival: to its first start, to its first token; and from there to its end."""
        times = [request.times for request in self.requests]
        arrival = min(each.arrival for each in times)
        started = min((each.started for each in times if each.started is not None), default=None)
        first = min((each.first_token for each in times if each.first_token is not None), default=None)
        end = max((each.end for each in times if each.end is not None), default=None)
        times_ms = _milliseconds(arrival, started), _milliseconds(arrival, first), _milliseconds(first, end)
        return Metrics(*times_ms, self._predicted_tokens())

    def _predicted_tokens(self) -> float | None:
        """Of all answers together, as usage counts them."""
        lengths = [request.predicted_length for request in self.requests]
        known = [length for length in lengths if length is not None]
        return round(sum(known), 1) if len(known) == len(lengths) else None


def _scored(update: RowUpdate) -> FinishReason | None:
    """No token was asked for, so the answer ends because its length, zero, is reached."""
    return None if update.finish_reason is None else FinishReason.LENGTH


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)


def orders(body: ChatBody | CompletionBody, prompts: Sequence[Prompt], service: Service) -> list[Order]:
    """What a body asks for: n answers to each prompt; raises ApiError 400."""
    choices = body.n or 1
    if choices * len(prompts) > MAX_CHOICES:
        message = f"n: {choices} answers to each of {len(prompts)} prompts are more than {MAX_CHOICES} in one request"
        raise bad_request(message, "n")
    wanted = [(prompt, sampling_params(body, service, len(prompt.ids))) for prompt in prompts]
    return [
        Order(prompt, seeded(sampling, service.next_seed() if body.seed is None else body.seed, choice))
        for prompt, sampling in wanted
        for choice in range(choices)
    ]


@asynccontextmanager
async def opened(
    body: ChatBody | CompletionBody, prompts: Sequence[Prompt], service: Service, arrival: float
) -> AsyncIterator[Call]:
    """Submit every answer of a call; on leaving, cancel what has not ended. Raises ApiError 400 or 503."""
    wanted = orders(body, prompts, service)
    predictions = await _predictions(wanted, service)  # a client that leaves meanwhile has cost nothing
    answers: list[Answer] = []
    try:
        for order in wanted:
            request = _submit(order, predictions[id(order.prompt)], body.priority or 0, arrival, service)
            answers.append(Answer(len(answers), order.prompt, request))
        yield Call(tuple(answers), is_scoring(body))
    except Refused as error:
        raise ApiError(503, str(error)) from None
    finally:
        for answer in answers:
            service.dispatcher.cancel(answer.request)


async def _predictions(wanted: Sequence[Order], service: Service) -> Mapping[int, Prediction | None]:
    """One for each distinct prompt, by its id."""
    distinct = {id(order.prompt): order for order in wanted}
    asked = (service.foresight.predict(order.query, order.sampling) for order in distinct.values())
    try:
        return dict(zip(distinct, await asyncio.gather(*asked), strict=True))
    except NoReplay as error:
        raise bad_request(f"replay_tokens: {error}", "replay_tokens") from None


def _submit(order: Order, prediction: Prediction | None, priority: int, arrival: float, service: Service) -> Request:
    request = service.dispatcher.submit(
        order.prompt.ids,
        order.sampling,
        priority=priority,
        arrival=arrival,
        predicted_length=None if prediction is None else prediction.length,
        distribution=None if prediction is None else prediction.distribution,
    )
    service.foresight.note(request, order.query, prediction)
    return request
