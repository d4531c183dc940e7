"""POST /v1/estimate: what would become of a generating call that came now, which is not made."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from server.api.errors import bad_request
from server.api.generator import DISPATCHER, LENGTHS
from server.api.input.body import parse, read_body
from server.api.input.fields import ABSENT
from server.api.input.prompts import Prompt, chat_prompt, completion_prompts
from server.api.input.schema import ChatBody, CompletionBody, GenerationBody
from server.api.models import model_name
from server.api.output.expectation import expectation_of
from server.api.output.reply import json_response
from server.api.output.wanted import describe, length_scope, list_wanted, predict
from server.api.responses.body import ResponsesBody
from server.api.responses.endpoint import read_chat
from server.api.served_model import MODEL
from server.api.ticket import TICKET
from server.http.access import client_of, holder_of


class AnyBody(msgspec.Struct, frozen=True):
    """The body of any generating call; which one, the field with its prompt tells."""

    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT


async def estimate(request: web.Request) -> web.Response:
    """Tell what a call would cost and how long it would take if it came now, without making it; raises ApiError 400."""
    model = request.app[MODEL]
    body, prompts = await _read(request)
    model_name(body.model, model)
    wanted, holder, client = list_wanted(body, prompts, model), holder_of(request), client_of(request, body.user)
    async with predict(wanted, request.app[LENGTHS], length_scope(holder, body.cache_salt)) as predictions:
        requests = [
            request.app[DISPATCHER].estimate(
                item.prompt.ids,
                item.sampling,
                **describe(item, predictions[id(item.prompt)], body, request.app, client, holder),
            )
            for item in wanted
        ]
    told = expectation_of(requests)
    request[TICKET].spend(told.prompt_tokens)
    return json_response(told)


async def _read(request: web.Request) -> tuple[ChatBody | CompletionBody, Sequence[Prompt]]:
    """The body, and its prompts; raises ApiError 400."""
    model, given = request.app[MODEL], await read_body(request, GenerationBody, _schema_of)
    if isinstance(given, CompletionBody):
        return given, await completion_prompts(given, model)
    if isinstance(given, ResponsesBody):
        given, _ = await read_chat(request, given)
    assert isinstance(given, ChatBody), "the only kind that is left"
    return given, [await chat_prompt(given, model)]


def _schema_of(raw: bytes) -> type[GenerationBody]:
    """The kind of a body; raises ApiError 400."""
    given = parse(raw, AnyBody)
    if bytes(given.prompt):
        return CompletionBody
    if bytes(given.input):
        return ResponsesBody
    if bytes(given.messages):
        return ChatBody
    raise bad_request("messages: is missing; give messages, prompt or input, as the call would", "messages")
