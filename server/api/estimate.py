"""POST /v1/estimate: what would become of a generating call that came now, which is not made."""

from __future__ import annotations

import msgspec
from aiohttp import web

from server.api.errors import bad_request
from server.api.generator import DISPATCHER, LENGTHS
from server.api.input.body import parse, read_raw
from server.api.input.prompts import Prompt, chat_prompt, completion_prompts
from server.api.input.refusals import ABSENT
from server.api.input.schema import ChatBody, CompletionBody
from server.api.models import model_name
from server.api.output.call import describe, list_wanted, predict
from server.api.output.expectation import expectation_of
from server.api.output.reply import json_response
from server.api.responses.body import ResponsesBody, as_chat, conversation
from server.api.responses.endpoint import earlier_turns
from server.api.responses.store import STORE
from server.api.served_model import MODEL
from server.http.access import holder_of
from server.http.client import client_of


class AnyBody(msgspec.Struct, frozen=True):
    """The body of any generating call; which one, the field with its prompt tells."""

    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT


async def estimate(request: web.Request) -> web.Response:
    """Tell what a call would cost and how long it would take if it came now, without making it; raises ApiError 400."""
    raw, model = await read_raw(request), request.app[MODEL]
    body, prompts = await _read(raw, request)
    model_name(body.model, model)
    wanted, holder, client = list_wanted(body, prompts, model), holder_of(request), client_of(request, body.user)
    async with predict(wanted, request.app[LENGTHS]) as predictions:
        requests = [
            request.app[DISPATCHER].estimate(
                item.prompt.ids,
                item.sampling,
                **describe(item, predictions[id(item.prompt)], body, request.app, client, holder),
            )
            for item in wanted
        ]
    return json_response(expectation_of(requests))


async def _read(raw: bytes, request: web.Request) -> tuple[ChatBody | CompletionBody, list[Prompt]]:
    """The body, and its prompts; raises ApiError 400."""
    model, given = request.app[MODEL], parse(raw, AnyBody)
    if bytes(given.prompt):
        completion = parse(raw, CompletionBody)
        return completion, await completion_prompts(completion, model)
    if bytes(given.input):
        response = parse(raw, ResponsesBody)
        earlier = earlier_turns(response, request.app[STORE], holder_of(request))
        chat = as_chat(response, (*earlier, *conversation(response)))
    elif bytes(given.messages):
        chat = parse(raw, ChatBody)
    else:
        raise bad_request("messages: is missing; give messages, prompt or input, as the call would", "messages")
    return chat, [await chat_prompt(chat, model)]
