"""The answers that a body asks for, before any is a request: their bounds, seeds, predicted lengths and work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeAlias

from aiohttp import web

from engine.sampling.params import SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import NoReplay, Prediction
from server.api.errors import bad_request
from server.api.generator import AnswerLengths
from server.api.input.prompts import Prompt
from server.api.input.sampling import for_prompt, sampling_params, with_seed
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody
from server.api.served_model import MODEL, ServedModel

MAX_LOGPROBS = 2**20
"""Log-probabilities, alternatives included, that one call may have kept for it."""

Predictions: TypeAlias = Mapping[int, Prediction | None]
"""The prediction for each distinct prompt of a call, by the prompt's id."""


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """One answer that is wanted."""

    prompt: Prompt
    sampling: SamplingParams

    def query(self, scope: str) -> LengthQuery:
        """The prompt's parts and bounds from which the length of the answer is predicted, and whose it is."""
        prompt, most = self.prompt, self.sampling.max_tokens
        split = prompt.split
        return LengthQuery(split.instruction, split.user_input, prompt.user_input_length, most, prompt.text_ids, scope)


def list_wanted(
    body: ChatBody | CompletionBody, prompts: Sequence[Prompt], model: ServedModel, most: int = MAX_LOGPROBS
) -> list[WantedAnswer]:
    """The answers that a body asks for, n to each prompt, without their seeds, and `most` log-probabilities in all;
    raises ApiError 400."""
    choices = body.n or 1
    if choices * len(prompts) > MAX_CHOICES:
        message = f"n: {choices} answers to each of {len(prompts)} prompts are more than {MAX_CHOICES} in one request"
        raise bad_request(message, "n")
    compiled = prompts[0].grammar  # all have the same, and hold on to it for as long as the call lasts
    common = sampling_params(body, model, len(prompts[0].ids), None if compiled is None else compiled.grammar)
    wanted = [WantedAnswer(prompts[0], common)] * choices
    for prompt in prompts[1:]:
        wanted += [WantedAnswer(prompt, for_prompt(common, body, model, len(prompt.ids)))] * choices
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


def describe(
    item: WantedAnswer,
    prediction: Prediction | None,
    body: ChatBody | CompletionBody,
    app: web.Application,
    client: str,
    holder: str | None,
) -> dict[str, Any]:
    """Arguments of the dispatcher's `submit` and `estimate` besides the prompt: priority, client, predicted length."""
    return {
        "priority": body.priority or 0,
        "client": client,
        "predicted_length": None if prediction is None else prediction.length,
        "distribution": None if prediction is None else prediction.distribution,
        "cache_scope": _cache_scope(None if app[MODEL].defaults.shares_prefixes else holder, body.cache_salt),
    }


def _cache_scope(holder: str | None, salt: str | None) -> str:
    """The name under which prompts of an API key's holder, and of the client's salt, are kept for each other."""
    return (holder or "") + (f" {salt}" if salt else "")


def length_scope(holder: str | None, salt: str | None) -> str:
    """A digest of an API key's holder and of the client's salt, whose answers predict each other's lengths; empty where
    neither is given."""
    return (
        sha256(_cache_scope(holder, salt).encode("utf-8", "surrogatepass")).hexdigest()[:16] if holder or salt else ""
    )


def answer_tokens(item: WantedAnswer, prediction: Prediction | None) -> int:
    """Tokens of an answer, as far as they can be foreseen."""
    most = item.sampling.max_tokens
    return most if prediction is None else min(most, int(prediction.length))


@asynccontextmanager
async def predict(wanted: Sequence[WantedAnswer], lengths: AnswerLengths, scope: str) -> AsyncIterator[Predictions]:
    """Predict the length of each distinct prompt's answer; on leaving, forget what has not come in time."""
    distinct = {id(item.prompt): item for item in wanted}
    asked = [asyncio.ensure_future(lengths.predict(item.query(scope), item.sampling)) for item in distinct.values()]
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
