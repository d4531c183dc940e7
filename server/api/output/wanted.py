"""The answers that a body asks for, before any is a request: how their tokens are chosen, their bounds, seeds and
predicted lengths.

It owns the checks that need the model or two fields at once; single fields are bounded by the schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from engine.sampling.params import Grammar, SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.oracle import NoReplay
from scheduler.length.prediction import Prediction
from server.api.errors import ApiError, bad_request
from server.api.input.prompts import Prompt
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody, TextBody
from server.api.served_model import AnswerLengths, ServedModel

MAX_LOGPROBS = 2**20
"""Log-probabilities, alternatives included, that one call may have kept for it."""


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
    body: TextBody, prompts: Sequence[Prompt], model: ServedModel, most: int = MAX_LOGPROBS, *, seeded: bool = True
) -> list[WantedAnswer]:
    """The answers that a body asks for, n to each prompt, with `most` log-probabilities in all; raises ApiError 400.

    Seeds are drawn once the body cannot be refused any more, since --seed makes them a sequence, and not at all for
    answers that are not `seeded`. Choices have consecutive seeds, within 64 unsigned bits.
    """
    choices = body.n or 1
    if choices * len(prompts) > MAX_CHOICES:
        message = f"n: {choices} answers to each of {len(prompts)} prompts are more than {MAX_CHOICES} in one request"
        raise bad_request(message, "n")
    compiled = prompts[0].grammar  # all have the same, and hold on to it for as long as the call lasts
    grammar = None if compiled is None else compiled.grammar
    chosen = [sampling_fields(body, model, len(prompt.ids), grammar) for prompt in prompts]
    if chosen[0]["logprobs"] is not None or chosen[0]["prompt_logprobs"] is not None:
        _bound_logprobs(body, prompts, chosen, most)
    draw = model.defaults.next_seed if seeded and body.seed is None else lambda: body.seed or 0
    return [
        WantedAnswer(prompt, SamplingParams(**fields, seed=(draw() + choice) % 2**64))
        for prompt, fields in zip(prompts, chosen, strict=True)
        for choice in range(choices)
    ]


def _bound_logprobs(body: TextBody, prompts: Sequence[Prompt], chosen: Sequence[Mapping[str, Any]], most: int) -> None:
    """Raise ApiError 400 where the log-probabilities that have to be kept until they are sent are more than `most`."""
    choices, read, made = body.n or 1, chosen[0]["prompt_logprobs"], chosen[0]["logprobs"]
    asked = {
        "prompt_logprobs": 0 if read is None else choices * (1 + read) * sum(len(prompt.ids) for prompt in prompts),
        "logprobs": 0
        if made is None or body.stream
        else choices * (1 + made) * sum(fields["max_tokens"] for fields in chosen),
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
    body: TextBody,
    model: ServedModel,
    client: str,
    holder: str | None,
) -> dict[str, Any]:
    """Arguments of the dispatcher's `submit` and `estimate`."""
    return {
        "prompt": item.prompt.ids,
        "sampling": item.sampling,
        "priority": body.priority or 0,
        "client": client,
        "predicted_length": None if prediction is None else prediction.length,
        "distribution": None if prediction is None else prediction.distribution,
        "cache_scope": _cache_scope(None if model.defaults.shares_prefixes else holder, body.cache_salt),
    }


def _cache_scope(holder: str | None, salt: str | None) -> str:
    """The name under which prompts of an API key's holder, and of the client's salt, are kept for each other."""
    return (holder or "") + (f" {salt}" if salt else "")


def length_scope(holder: str | None, salt: str | None) -> str:
    """A digest of an API key's holder and of the client's salt, whose answers predict each other's lengths; empty where
    neither is given."""
    if not (holder or salt):
        return ""
    return sha256(_cache_scope(holder, salt).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@asynccontextmanager
async def predict(
    wanted: Sequence[WantedAnswer], lengths: AnswerLengths, scope: str
) -> AsyncIterator[list[Prediction | None]]:
    """Predict the length of each answer, once a distinct prompt; on leaving, forget what has not come in time."""
    distinct = {id(item.prompt): item for item in wanted}
    asked = [asyncio.ensure_future(lengths.predict(item.query(scope), item.sampling)) for item in distinct.values()]
    try:
        try:
            predictions = await asyncio.gather(*asked)
        except NoReplay as error:
            raise bad_request(f"replay_tokens: {error}", "replay_tokens") from None
        known = dict(zip(distinct, predictions, strict=True))
        yield [known[id(item.prompt)] for item in wanted]
    finally:
        for future in asked:  # one that has not come was cancelled together with its caller
            if future.done() and not future.cancelled() and future.exception() is None and (late := future.result()):
                late.forget()


COMPLETION_TOKENS = 16
"""Answer length of /v1/completions when none is given, as in OpenAI's API."""

DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields for which the model has defaults of its own."""

ABSENT_IS_ZERO = ("presence_penalty", "frequency_penalty", "min_tokens")
ABSENT_IS_FALSE = ("ignore_eos", "include_stop_str_in_output")


def sampling_fields(
    body: TextBody, model: ServedModel, prompt_length: int, grammar: Grammar | None = None
) -> dict[str, Any]:
    """The SamplingParams of each answer to a prompt of `prompt_length` tokens, but for the seed; raises ApiError 400.

    `top_k` -1 is off, as 0 is.
    """
    defaults = model.defaults.sampling
    given = {name: getattr(body, name) for name in DEFAULTED}
    chosen = {name: getattr(defaults, name) if value is None else value for name, value in given.items()}
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options: is allowed only when stream is true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs: cannot be streamed; leave out stream", "prompt_logprobs")
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    asked = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    return {
        **chosen,
        **{name: getattr(body, name) or 0 for name in ABSENT_IS_ZERO},
        **{name: bool(getattr(body, name)) for name in ABSENT_IS_FALSE},
        "top_k": max(chosen["top_k"], 0),
        "max_tokens": _max_tokens(body, model, prompt_length),
        "replay_tokens": None if body.replay_tokens is None else _replay_tokens(body, model, prompt_length),
        "logit_bias": _logit_bias(body.logit_bias, model.vocab_size) if body.logit_bias else (),
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        "stop_token_ids": _stop_token_ids(body.stop_token_ids, model.vocab_size) if body.stop_token_ids else (),
        "logprobs": _logprobs(body),
        "prompt_logprobs": max(asked, default=None),
        "stop_repetition": model.defaults.stop_repetition,
        "grammar": grammar,
    }


def is_scoring(body: TextBody) -> bool:
    """Whether the client wants its prompt back with log-probabilities, and nothing generated."""
    return isinstance(body, CompletionBody) and bool(body.echo) and body.max_tokens == 0


def _max_tokens(body: TextBody, model: ServedModel, prompt_length: int) -> int:
    """Tokens an answer may have, and the model's own settings allow: what was asked for, which must fit, else the
    endpoint's default, clipped."""
    room, name, asked = model.context_length - prompt_length, "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked == 0 and is_scoring(body):
        asked = 1  # the engine makes at least one token; the answer leaves it out
    if asked == 0:
        raise bad_request(f"{name}: must be at least 1 (0 is allowed only together with echo)", name)
    if asked is not None and asked > room:
        raise _too_long(name, asked, prompt_length, model)
    most = model.defaults.sampling.max_new_tokens
    found = min(room, _default_tokens(body, model)) if asked is None else asked
    found = found if most is None else min(found, most)
    if (body.min_tokens or 0) > found:
        raise bad_request(f"min_tokens: must not exceed max_tokens, which is {found} here", "min_tokens")
    return found


def _too_long(name: str, asked: int, prompt_length: int, model: ServedModel) -> ApiError:
    message = (
        f"{name}: the prompt has {prompt_length} tokens and {name} asks for {asked} more, but the context holds "
        f"{model.context_length}; lower {name} to {model.context_length - prompt_length} or shorten the prompt"
    )
    return bad_request(message, name, "context_length_exceeded")


def _default_tokens(body: TextBody, model: ServedModel) -> int:
    """The endpoint's default; a chat's gives way to a longer answer that its request asks for in another field."""
    if isinstance(body, CompletionBody):
        return COMPLETION_TOKENS
    if model.defaults.max_tokens is None:
        return model.context_length
    return max(model.defaults.max_tokens, body.min_tokens or 0, body.replay_tokens or 0)


def _replay_tokens(body: TextBody, model: ServedModel, prompt_length: int) -> int:
    """The length that an answer shall have; one that max_tokens cuts short ends there."""
    asked = body.replay_tokens or 0
    if not model.defaults.allow_replay:
        message = "replay_tokens: this server does not replay lengths; leave it out, or start with --allow-replay"
        raise bad_request(message, "replay_tokens", "unsupported")
    if asked > model.context_length - prompt_length:
        raise _too_long("replay_tokens", asked, prompt_length, model)
    if (body.min_tokens or 0) > asked:
        raise bad_request(f"min_tokens: must not exceed replay_tokens, which is {asked}", "min_tokens")
    return asked


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise bad_request(f"logit_bias: keys must be token ids from 0 to {vocab_size - 1}", "logit_bias")
    return tuple((int(key), bias) for key, bias in biases.items())


def _stop_token_ids(ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    if max(ids) >= vocab_size:
        raise bad_request(f"stop_token_ids: token ids go from 0 to {vocab_size - 1}", "stop_token_ids")
    return tuple(ids)


def _logprobs(body: TextBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise bad_request("top_logprobs: needs logprobs to be true", "top_logprobs")
    return None
