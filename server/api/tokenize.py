"""POST /tokenize and /detokenize: a prompt or messages to token ids and back, in vLLM's shapes.

Both run off the event loop; nothing gets in line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from aiohttp import web

from server.api.errors import bad_request
from server.api.input.body import read_body
from server.api.input.prompts import check_bytes, check_ids, refuse_unencodable, render_chat
from server.api.input.schema import Messages, ModelName, TemplateVariables, TokenIds
from server.api.models import model_name
from server.api.output.large_json import LETTERS, send_reply
from server.api.output.reply import Lazy
from server.api.served_model import MODEL, ServedModel
from server.api.ticket import TICKET


class TokenizeBody(msgspec.Struct, frozen=True):
    """POST /tokenize: either a prompt or messages, split as a request with them would be."""

    told: ClassVar[dict[str, object]] = {
        "oneOf": [
            {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]},
            {
                "properties": {
                    "messages": {"type": "array"},
                    "prompt": {"type": "null"},
                    "add_special_tokens": {"enum": [None, False]},
                },
                "required": ["messages"],
            },
        ]
    }

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """POST /detokenize."""

    tokens: TokenIds
    model: ModelName | None = None


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
    model = request.app[MODEL]
    body = await read_body(request, TokenizeBody)
    model_name(body.model, model)
    tokens = await model.run_in_thread(_tokenize, body, model)
    request[TICKET].spend(tokens.count)
    return await send_reply(request, tokens, tokens.count)


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Join tokens to text; raises ApiError 400."""
    model = request.app[MODEL]
    body = await read_body(request, DetokenizeBody)
    model_name(body.model, model)
    text = await model.run_in_thread(_detokenize, body, model)
    request[TICKET].spend(len(body.tokens))
    return await send_reply(request, text, len(text.prompt) // LETTERS)


def _tokenize(body: TokenizeBody, model: ServedModel) -> Tokens:
    ids = _conversation_ids(body, model) if body.messages is not None else _prompt_ids(body, model)
    names = Lazy(model.text.token_string, ids) if body.return_token_strs else None
    return Tokens(len(ids), model.context_length, ids, names)


def _conversation_ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if body.prompt is not None:
        raise bad_request("prompt: give either prompt or messages, not both", "prompt")
    if body.add_special_tokens:
        message = "add_special_tokens: with messages the chat template decides which there are; leave it out"
        raise bad_request(message, "add_special_tokens", "unsupported")
    _, ids = render_chat(
        body.messages or [],
        body.chat_template_kwargs,
        model,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return ids


def _prompt_ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if body.prompt is None:
        raise bad_request("prompt: is missing; give either prompt or messages", "prompt")
    check_bytes(len(body.prompt.encode()), "prompt", model)
    with refuse_unencodable("prompt"):
        return model.text.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)


def _detokenize(body: DetokenizeBody, model: ServedModel) -> Detokenized:
    check_ids(body.tokens, "tokens", model)
    return Detokenized(model.text.decode(body.tokens, skip_special_tokens=False))
