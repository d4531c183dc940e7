"""A body's answers: sampling, bounds, seeds, predicted lengths; checks that need the model or several fields."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from aiohttp import web
from msgspec.structs import asdict

from engine.sampling.params import SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.oracle import NoReplay
from scheduler.length.prediction import Prediction
from scheduler.submission import Known, Submission
from server.api.errors import ApiError, invalid
from server.api.input.prompts import Prompt, check_ids
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody, TextBody
from server.api.served_model import LENGTHS, MODEL, ServedModel

MAX_LOGPROBS = 2**20  # of a call, alternatives included


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    prompt: Prompt
    query: LengthQuery
    prediction: Prediction | None
    tokens: int  # of prompt and answer, as foreseen
    submission: Submission


@asynccontextmanager
async def foresee(
    body: TextBody,
    prompts: Sequence[Prompt],
    app: web.Application,
    client: str,
    holder: str | None,
    more: Known,
    *,
    most: int = MAX_LOGPROBS,
    seeded: bool = True,
) -> AsyncIterator[list[WantedAnswer]]:
    """With predicted lengths, and `more` that is known; leaving drops pending predictions. Raises ApiError 400."""
    model, salt = app[MODEL], body.cache_salt
    scope = length_scope(holder, salt) if holder or salt else ""
    cache = "" if model.settings.prefix_cache_shared else holder or ""
    known = Known(priority=body.priority or 0, client=client, cache_scope=f"{cache} {salt}" if salt else cache) | more

    chosen = [*zip(prompts, list_sampling(body, prompts, model, most, seeded=seeded), strict=True)]
    queries = [replace(prompt.parts, max_tokens=own[0].max_tokens, scope=scope) for prompt, own in chosen]
    predict = app[LENGTHS].predict
    asked = [asyncio.ensure_future(predict(query, own[0])) for query, (_, own) in zip(queries, chosen, strict=True)]
    try:
        wanted = list[WantedAnswer]()
        for (prompt, own), query, told in zip(chosen, queries, await asyncio.gather(*asked), strict=True):
            length, expected = Known(), query.max_tokens
            if told is not None:
                length = Known(predicted_length=told.length, distribution=told.distribution)
                expected = min(expected, int(told.length))
            tokens = len(prompt.ids) + expected
            wanted += [WantedAnswer(prompt, query, told, tokens, (prompt.ids, one, known | length)) for one in own]
        yield wanted
    except NoReplay as error:
        raise invalid("replay_tokens", str(error)) from None
    finally:
        for future in asked:  # pending ones were cancelled with their caller
            done = future.done() and not future.cancelled() and future.exception() is None
            if done and (late := future.result()) is not None:
                late.forget()


def length_scope(holder: str | None, salt: str | None) -> str:
    """HOLDER or HOLDER:SALT, digests; answers of one scope predict each other."""
    names = [holder or "", *([f"{holder or ''} {salt}"] if salt else ())]
    return ":".join(sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16] for name in names)


def list_sampling(
    body: TextBody, prompts: Sequence[Prompt], model: ServedModel, most: int = MAX_LOGPROBS, *, seeded: bool = True
) -> list[list[SamplingParams]]:
    """Up to `most` log-probabilities; raises ApiError 400. Seeds, consecutive for choices, are drawn last, since --seed
    makes them a sequence, and only where `seeded`.
    """
    choices = body.n or 1
    if choices * len(prompts) > MAX_CHOICES:
        fault = f"{choices} answers to each of {len(prompts)} prompts are more than {MAX_CHOICES} in one request"
        raise invalid("n", fault)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "is allowed only when stream is true")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "cannot be streamed; leave out stream")
    lengths = [_max_tokens(body, model, model.context_length - len(prompt.ids)) for prompt in prompts]
    logprobs, scored = body.logprobs, body.prompt_logprobs
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "needs logprobs to be true")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
    elif body.echo and logprobs is not None:
        scored = max(logprobs, scored or 0)
    of_prompts = 0 if scored is None else choices * (1 + scored) * sum(len(prompt.ids) for prompt in prompts)
    of_answers = 0 if logprobs is None or body.stream else choices * (1 + logprobs) * sum(lengths)
    if of_prompts + of_answers > most:
        name, hint = ("logprobs", ", or set max_tokens") if of_answers > of_prompts else ("prompt_logprobs", "")
        fault = f"{of_prompts + of_answers} log-probabilities are more than {most} in one request"
        raise invalid(name, f"{fault}; ask for fewer alternatives, prompts or answers{hint}")
    fields = _engine_fields(body, model)
    grammar = None if prompts[0].grammar is None else prompts[0].grammar.compiled.grammar
    fields |= {"logprobs": logprobs, "prompt_logprobs": scored, "grammar": grammar}
    draw = model.defaults.next_seed if seeded and body.seed is None else lambda: body.seed or 0
    return [
        [SamplingParams(length, **fields, seed=(draw() + choice) % 2**64) for choice in range(choices)]
        for length in lengths
    ]


def _engine_fields(body: TextBody, model: ServedModel) -> dict[str, Any]:
    fields = asdict(model.defaults.sampling)
    fields |= {name: value for name in COPIED if (value := getattr(body, name)) is not None}
    del fields["max_new_tokens"]
    if fields["top_p"] == 0:  # the likeliest alone
        fields["temperature"] = 0.0
    check_ids(body.stop_token_ids or (), "stop_token_ids", model)
    return fields | {
        "top_k": max(fields["top_k"], 0),  # -1 is off, as 0
        "replay_tokens": body.replay_tokens,
        "logit_bias": _logit_bias(body.logit_bias, model.vocab_size) if body.logit_bias else (),
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "stop_repetition": model.defaults.stop_repetition,
    }


COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions

COPIED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "ignore_eos", "include_stop_str_in_output"),
)  # passed on as they are


def is_scoring(body: TextBody) -> bool:
    """Only the prompt's log-probabilities."""
    return isinstance(body, CompletionBody) and bool(body.echo) and body.max_tokens == 0


def _max_tokens(body: TextBody, model: ServedModel, room: int) -> int:
    """Cut to the `room` behind the prompt and the model's bound; a replayed length must fit."""
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked == 0 and is_scoring(body):
        asked = 1  # the engine makes one at least
    if asked == 0:
        raise invalid(name, "must be at least 1 (0 is allowed only together with echo)")
    if asked is not None and asked > room and model.settings.refuse_long_max_tokens:
        raise _too_long(name, asked, room, model)
    if asked is None and isinstance(body, CompletionBody):
        asked = COMPLETION_TOKENS
    if asked is None and model.defaults.max_tokens is not None:
        # A default yields to another field's longer answer.
        asked = max(model.defaults.max_tokens, body.min_tokens or 0, body.replay_tokens or 0)
    found = min(one for one in (asked, room, model.defaults.sampling.max_new_tokens) if one is not None)
    if (body.min_tokens or 0) > found:
        raise invalid("min_tokens", f"must not exceed max_tokens, which is {found} here")
    if (replay := body.replay_tokens) is not None:
        if not model.settings.allow_replay:
            fault = "this server does not replay lengths; leave it out, or start with --allow-replay"
            raise invalid("replay_tokens", fault, "unsupported")
        if replay > room:
            raise _too_long("replay_tokens", replay, room, model)
        if (body.min_tokens or 0) > replay:
            raise invalid("min_tokens", f"must not exceed replay_tokens, which is {replay}")
    return found


CUT = "x-lengthwise-max-tokens"  # response header with a lowered max_tokens


def cut_header(body: TextBody, granted: Iterable[int]) -> Mapping[str, str]:
    """The lowest granted; empty where none was cut."""
    asked, least = getattr(body, "max_completion_tokens", None) or body.max_tokens, min(granted)
    return {CUT: str(least)} if asked is not None and least < asked else {}


def _too_long(name: str, asked: int, room: int, model: ServedModel) -> ApiError:
    length, remedy = model.context_length, f"lower {name} to {room} or shorten the prompt"
    fault = f"the prompt has {length - room} tokens and {name} asks for {asked} more, but the context holds {length}"
    return invalid(name, f"{fault}; {remedy}", "context_length_exceeded")


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise invalid("logit_bias", f"keys must be token ids from 0 to {vocab_size - 1}")
    return tuple((int(key), bias) for key, bias in biases.items())
