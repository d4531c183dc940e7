"""POST /v1/chat/completions, /v1/completions and /v1/messages: prompts in, answers out."""

from dataclasses import dataclass

from aiohttp import web

from server.api.errors import reword_errors
from server.api.input.body import read_call
from server.api.input.messages import CHAT_WORDS, MessagesBody, as_chat
from server.api.input.schema import ChatBody, CompletionBody
from server.api.output.answer import Wording, respond
from server.api.output.chat import ChatWords
from server.api.output.completions import CompletionWords
from server.api.output.messages import MessageWords
from server.api.served_model import MODEL


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a path's calls are read and worded."""

    schema: type[ChatBody] | type[CompletionBody]
    prefix: str  # of the answers' ids
    words: Wording


CHAT = Endpoint(ChatBody, "chatcmpl-", ChatWords)
COMPLETION = Endpoint(CompletionBody, "cmpl-", CompletionWords)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation."""
    body, record = await read_call(request, CHAT.schema, CHAT.prefix)
    return await respond(request, record, body, CHAT.words)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue prompts."""
    body, record = await read_call(request, COMPLETION.schema, COMPLETION.prefix)
    return await respond(request, record, body, COMPLETION.words)


async def messages(request: web.Request) -> web.StreamResponse:
    """Take the assistant's next turn in a conversation, as Anthropic's messages do."""
    body, record = await read_call(request, MessagesBody, "msg_")
    with reword_errors({"stop": "stop_sequences", "response_format": "output_config"}, CHAT_WORDS):
        chat = await request.app[MODEL].run_in_thread(as_chat, body)
        return await respond(request, record, chat, MessageWords)
