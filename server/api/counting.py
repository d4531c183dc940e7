"""Dry runs: POST /v1/estimate, Anthropic's count_tokens, and vLLM's POST /tokenize and /detokenize."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec
from aiohttp import web

from scheduler.submission import Known
from server.access import client_of, holder_of
from server.api.errors import invalid, reword_errors
from server.api.input import prompts as text_prompts, schema
from server.api.input.body import decode, hold_body, read_body
from server.api.input.messages import CHAT_WORDS, CountBody, as_chat
from server.api.input.promise import ask_for, read_header
from server.api.input.refused import ABSENT, is_given, refuse_foreign
from server.api.input.responses import OWN_NAMES, OWN_WORDS, ResponsesBody
from server.api.input.sampling import cut_header, foresee
from server.api.input.tools import toolbox
from server.api.output.messages import TokenCount
from server.api.output.reply import SHORT_FORM, Lazy, json_response
from server.api.output.sse import send_reply
from server.api.responses import read_chat
from server.api.served_model import DISPATCHER, MODEL, ServedModel, model_name
from server.api.ticket import TICKET, foresee_end


class AnyBody(msgspec.Struct, frozen=True):
    """The body of any generating call; the field with the prompt says which."""

    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT


async def estimate(request: web.Request) -> web.Response:
    """Tell what a call would cost and how long it would take if it came now, without making it; raises ApiError 400."""
    given = await _read(request)
    with reword_errors(*((OWN_NAMES, OWN_WORDS) if isinstance(given, ResponsesBody) else ({}, {}))):
        return await _estimate(request, given)


async def _estimate(request: web.Request, given: schema.GenerationBody) -> web.Response:
    body = (await read_chat(request, given))[0] if isinstance(given, ResponsesBody) else given
    assert isinstance(body, schema.TextBody)
    prompts = await text_prompts.read_prompts(body, request.app[MODEL])
    model_name(body.model, request.app[MODEL])
    client, holder, dispatcher = client_of(request, body.user), holder_of(request), request.app[DISPATCHER]
    asked, now = body.promise or read_header(request.headers), dispatcher.now()
    known = Known() if asked is None else ask_for(asked, now, now)
    known["deadline"] = None if body.deadline_ms is None else now + body.deadline_ms / 1000
    async with foresee(body, prompts, request.app, client, holder, known, seeded=False) as wanted:
        requests = dispatcher.admission.estimate_all(one.submission for one in wanted)
    request[SHORT_FORM] = cut_header(body, (one.sampling.max_tokens for one in requests))
    told = foresee_end(dispatcher, requests)
    request[TICKET].spend(told.prompt_tokens)
    return json_response(told)


KINDS: Mapping[str, type[schema.GenerationBody]] = {
    "prompt": schema.CompletionBody,
    "input": ResponsesBody,
    "messages": schema.ChatBody,
}  # by the field that holds the prompt


async def _read(request: web.Request) -> schema.GenerationBody:
    async with hold_body(request) as raw:
        given = await decode(raw, AnyBody, request.app)
        names = [name for name in KINDS if is_given(getattr(given, name))]
        if len(names) != 1:
            fault = f"cannot go with {names[0]}" if names else "is missing"
            raise invalid("messages", f"{fault}; give messages, prompt or input, as the call would")
        return await decode(raw, KINDS[names[0]], request.app)


_TEXT = {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]}
_CHAT = {"messages": {"type": "array"}, "prompt": {"type": "null"}, "add_special_tokens": {"enum": [None, False]}}


class TokenizeBody(msgspec.Struct, frozen=True):
    """POST /tokenize: either a prompt or messages, split as a request with them would be."""

    told: ClassVar[dict[str, object]] = {"oneOf": [_TEXT, {"properties": _CHAT, "required": ["messages"]}]}

    model: schema.ModelName | None = None
    prompt: str | None = None
    messages: schema.Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: schema.TemplateVariables | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """POST /detokenize."""

    tokens: schema.TokenIds
    model: schema.ModelName | None = None


class Tokens(msgspec.Struct, frozen=True):
    """The tokens of a text: `count` of them, where the context holds `max_model_len`; each as the vocabulary spells it,
    or null where that was not asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Sequence[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens, control tokens written out."""

    prompt: str


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Split a prompt or messages into tokens; raises ApiError 400."""
    return await _count(request, TokenizeBody, _tokenize)


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Join tokens to text; raises ApiError 400."""
    return await _count(request, DetokenizeBody, _detokenize)


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """Count the tokens of a conversation, as Anthropic's messages do; raises ApiError 400."""
    return await _count(request, CountBody, _count_chat)


B = TypeVar("B", TokenizeBody, DetokenizeBody, CountBody)
Counted = tuple[msgspec.Struct, int]  # reply and tokens


async def _count(request: web.Request, kind: type[B], work: Callable[[B, ServedModel], Counted]) -> web.StreamResponse:
    model = request.app[MODEL]
    body = await read_body(request, kind)
    model_name(body.model, model)
    reply, tokens = await model.run_in_thread(work, body, model)
    request[TICKET].spend(tokens)
    return await send_reply(request, reply, tokens)


def _tokenize(body: TokenizeBody, model: ServedModel) -> Counted:
    ids = _conversation_ids(body, model) if body.messages is not None else _prompt_ids(body, model)
    names = Lazy(model.text.token_string, ids) if body.return_token_strs else None
    return Tokens(len(ids), model.context_length, ids, names), len(ids)


# of templates
TEMPLATE_FIELDS = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")


def _conversation_ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if body.prompt is not None:
        raise invalid("prompt", "give either prompt or messages, not both")
    if body.add_special_tokens:
        fault = "with messages the chat template decides which there are; leave it out"
        raise invalid("add_special_tokens", fault, "unsupported")
    fields = {name: getattr(body, name) for name in TEMPLATE_FIELDS}
    return text_prompts.render_chat(schema.ChatBody(messages=body.messages or [], **fields), model)[1]


def _prompt_ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if body.prompt is None:
        raise invalid("prompt", "is missing; give either prompt or messages")
    text_prompts.check_bytes(len(body.prompt.encode()), "prompt", model)
    return text_prompts.encode(body.prompt, "prompt", model, add_special_tokens=body.add_special_tokens is not False)


def _detokenize(body: DetokenizeBody, model: ServedModel) -> Counted:
    text_prompts.check_ids(body.tokens, "tokens", model)
    return Detokenized(model.text.decode(body.tokens, skip_special_tokens=False)), len(body.tokens)


def _count_chat(body: CountBody, model: ServedModel) -> Counted:
    refuse_foreign(body)
    with reword_errors({}, CHAT_WORDS):
        chat = as_chat(body)
        counted = len(text_prompts.render_chat(chat, model, toolbox(chat))[1])
    return TokenCount(counted), counted
