"""POST /v1/chat/completions, /v1/completions and /v1/messages: prompts in, answers out."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from server.api.errors import reword_errors
from server.api.input import prompts
from server.api.input.body import read_body, read_call
from server.api.input.messages import CHAT_WORDS, CountBody, MessagesBody, as_chat
from server.api.input.schema import ChatBody, CompletionBody
from server.api.input.tools import toolbox
from server.api.output.answer import Wording, respond
from server.api.output.chat import ChatWords
from server.api.output.completions import CompletionWords
from server.api.output.messages import MessageWords, TokenCount
from server.api.output.reply import json_response
from server.api.served_model import MODEL, ServedModel, model_name
from server.api.ticket import TICKET


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a path's calls are read and worded."""

    schema: type[ChatBody] | type[CompletionBody]
    prefix: str  # of the answers' ids
    prompts: Callable[[Any, ServedModel], Awaitable[Sequence[prompts.Prompt]]]
    words: Wording


CHAT = Endpoint(ChatBody, "chatcmpl-", prompts.chat_prompts, ChatWords)
COMPLETION = Endpoint(CompletionBody, "cmpl-", prompts.completion_prompts, CompletionWords)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation."""
    body, record = await read_call(request, ChatBody, CHAT.prefix)
    read = await prompts.chat_prompts(body, request.app[MODEL], f"{record.client} {body.cache_salt}")
    return await respond(request, record, body, read, CHAT.words)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue prompts."""
    body, record = await read_call(request, COMPLETION.schema, COMPLETION.prefix)
    return await respond(request, record, body, await COMPLETION.prompts(body, request.app[MODEL]), COMPLETION.words)


async def messages(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation, as Anthropic's messages do."""
    body, record = await read_call(request, MessagesBody, "msg_")
    with reword_errors({"stop": "stop_sequences", "response_format": "output_config"}, CHAT_WORDS):
        chat = await request.app[MODEL].run_in_thread(as_chat, body)
        read = await prompts.chat_prompts(chat, request.app[MODEL], f"{record.client} {chat.cache_salt}")
        return await respond(request, record, chat, read, MessageWords)


async def count_tokens(request: web.Request) -> web.Response:
    """Count the tokens of a conversation, as Anthropic's messages do; raises ApiError 400."""
    model = request.app[MODEL]
    body = await read_body(request, CountBody)
    model_name(body.model, model)

    def count() -> int:
        chat = as_chat(body)
        return len(prompts.render_chat(chat, model, toolbox(chat))[1])

    with reword_errors({}, CHAT_WORDS):
        counted = await model.run_in_thread(count)
    request[TICKET].spend(counted)
    return json_response(TokenCount(counted))
