"""A request's body -> how its tokens are chosen and when its answers end.

It owns the checks that need the model or two fields at once; single fields are bounded by the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from engine.sampling.params import Grammar, SamplingParams
from server.api.errors import bad_request
from server.api.input.schema import ChatBody, CompletionBody
from server.api.served_model import ServedModel

COMPLETION_TOKENS = 16
"""Answer length of /v1/completions when none is given, as in OpenAI's API."""

T = TypeVar("T", int, float)


def sampling_params(
    body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int, grammar: Grammar | None = None
) -> SamplingParams:
    """How each answer to a prompt of `prompt_length` tokens is made, its seed aside; raises ApiError 400."""
    defaults = model.defaults.sampling
    return SamplingParams(
        max_tokens=_max_tokens(body, model, prompt_length),
        replay_tokens=_replay_tokens(body, model, prompt_length),
        temperature=_given(body.temperature, defaults.temperature),
        top_p=_given(body.top_p, defaults.top_p),
        top_k=max(_given(body.top_k, defaults.top_k), 0),  # -1 is off too
        min_p=_given(body.min_p, defaults.min_p),
        repetition_penalty=_given(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}, model.vocab_size),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=_stop_token_ids(body.stop_token_ids or [], model.vocab_size),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body),
        stop_repetition=model.defaults.stop_repetition,
        grammar=grammar,
    )


def for_prompt(
    sampling: SamplingParams, body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int
) -> SamplingParams:
    """Parameters of another prompt of the same body; raises ApiError 400."""
    replay_tokens = _replay_tokens(body, model, prompt_length)
    return replace(sampling, max_tokens=_max_tokens(body, model, prompt_length), replay_tokens=replay_tokens)


def with_seed(sampling: SamplingParams, seed: int, choice: int) -> SamplingParams:
    """Parameters of one of several choices: its seed is `seed` + its number, within 64 unsigned bits."""
    return replace(sampling, seed=(seed + choice) % 2**64)


def is_scoring(body: ChatBody | CompletionBody) -> bool:
    """Whether the client wants its prompt back with log-probabilities, and nothing generated."""
    return isinstance(body, CompletionBody) and bool(body.echo) and body.max_tokens == 0


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _max_tokens(body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int) -> int:
    """Tokens an answer may have, and the model's own settings allow."""
    max_tokens = _fitting_tokens(body, model, prompt_length)
    if model.defaults.sampling.max_new_tokens is not None:
        max_tokens = min(max_tokens, model.defaults.sampling.max_new_tokens)
    if (body.min_tokens or 0) > max_tokens:
        raise bad_request(f"min_tokens: must not exceed max_tokens, which is {max_tokens} here", "min_tokens")
    return max_tokens


def _fitting_tokens(body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int) -> int:
    """Tokens an answer may have: what was asked for, which must fit, else the endpoint's default, clipped."""
    if is_scoring(body):
        return 1  # the engine makes at least one token; the answer leaves it out
    context_length = model.context_length
    room = context_length - prompt_length
    name, asked = _asked_tokens(body)
    if asked is None:
        return min(room, _default_tokens(body, model))
    if asked == 0:
        raise bad_request(f"{name}: must be at least 1 (0 is allowed only together with echo)", name)
    if asked > room:
        message = (
            f"{name}: the prompt has {prompt_length} tokens and {name} asks for {asked} more, but the context "
            f"holds {context_length}; lower {name} to {room} or shorten the prompt"
        )
        raise bad_request(message, name, "context_length_exceeded")
    return asked


def _default_tokens(body: ChatBody | CompletionBody, model: ServedModel) -> int:
    """The endpoint's default; a chat's gives way to a longer answer that its request asks for in another field."""
    if isinstance(body, CompletionBody):
        return COMPLETION_TOKENS
    if model.defaults.max_tokens is None:
        return model.context_length
    return max(model.defaults.max_tokens, body.min_tokens or 0, body.replay_tokens or 0)


def _asked_tokens(body: ChatBody | CompletionBody) -> tuple[str, int | None]:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _replay_tokens(body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int) -> int | None:
    """The length that an answer shall have; one that max_tokens cuts short ends there."""
    asked, room = body.replay_tokens, model.context_length - prompt_length
    if asked is None:
        return None
    if not model.defaults.allow_replay:
        message = "replay_tokens: this server does not replay lengths; leave it out, or start with --allow-replay"
        raise bad_request(message, "replay_tokens", "unsupported")
    if asked > room:
        message = (
            f"replay_tokens: the prompt has {prompt_length} tokens and replay_tokens asks for {asked} more, but the "
            f"context holds {model.context_length}; lower replay_tokens to {room} or shorten the prompt"
        )
        raise bad_request(message, "replay_tokens", "context_length_exceeded")
    if (body.min_tokens or 0) > asked:
        raise bad_request(f"min_tokens: must not exceed replay_tokens, which is {asked}", "min_tokens")
    return asked


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise bad_request(f"logit_bias: keys must be token ids from 0 to {vocab_size - 1}", "logit_bias")
    return tuple((int(key), bias) for key, bias in biases.items())


def _stop_token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    if any(token_id >= vocab_size for token_id in ids):
        raise bad_request(f"stop_token_ids: token ids go from 0 to {vocab_size - 1}", "stop_token_ids")
    return tuple(ids)


def _logprobs(body: ChatBody | CompletionBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise bad_request("top_logprobs: needs logprobs to be true", "top_logprobs")
    return None


def _prompt_logprobs(body: ChatBody | CompletionBody) -> int | None:
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs: cannot be streamed; leave out stream", "prompt_logprobs")
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    asked = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    return max(asked, default=None)
