"""One client's call: its answers, each a request to the scheduler, that begin and end together.

It knows no format. However a call ends, by its last token, a failure or a client that left, none of its requests
stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine.messages import FinishReason, RowUpdate, SamplingParams
from scheduler.dispatcher import Refused
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
        return Metrics(_milliseconds(arrival, started), _milliseconds(arrival, first), _milliseconds(first, end))


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


@contextmanager
def opened(body: ChatBody | CompletionBody, prompts: Sequence[Prompt], service: Service) -> Iterator[Call]:
    """Submit every answer of a call; on leaving, cancel what has not ended. Raises ApiError 400 or 503."""
    answers: list[Answer] = []
    try:
        for order in orders(body, prompts, service):
            request = service.dispatcher.submit(order.prompt.ids, order.sampling, priority=body.priority or 0)
            answers.append(Answer(len(answers), order.prompt, request))
        yield Call(tuple(answers), is_scoring(body))
    except Refused as error:
        raise ApiError(503, str(error)) from None
    finally:
        for answer in answers:
            service.dispatcher.cancel(answer.request)
