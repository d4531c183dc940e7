"""OpenAI's POST /v1/responses, and stored responses."""

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from msgspec import Raw
from msgspec.structs import astuple

from server.access import holder_of
from server.api.errors import invalid, reword_errors
from server.api.input import responses as bodies
from server.api.input.body import read_call
from server.api.input.refused import refuse_asked
from server.api.input.schema import ChatBody, Message, PastCall, PastFunction
from server.api.output import response_objects as replies
from server.api.output.answer import respond
from server.api.output.reply import encode, json_response
from server.api.output.responses import ResponseWords
from server.api.served_model import MODEL


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer a conversation with text and calls of functions, as OpenAI's responses do."""
    body, record = await read_call(request, bodies.ResponsesBody, "resp_")
    chat, spoken = await read_chat(request, body)
    keep = partial(request.app[STORE].add, holder_of(request), spoken) if body.store is not False else None
    with reword_errors(bodies.OWN_NAMES, bodies.OWN_WORDS):
        return await respond(request, record, chat, partial(ResponseWords, asked=body, keep=keep))


async def read_chat(request: web.Request, body: bodies.ResponsesBody) -> tuple[ChatBody, tuple[Message, ...]]:
    """With the turns before `previous_response_id`. Raises ApiError 400, 404."""
    earlier: tuple[Message, ...] = ()
    store, holder = request.app[STORE], holder_of(request)
    if (name := body.previous_response_id) is not None:
        earlier = store.find(name, holder, "previous_response_id").messages
    items = enumerate(() if isinstance(body.input, str) else body.input)
    named = [(place, item.id) for place, item in items if bodies.is_reference(item) and item.id]
    known = {name: store.find_item(name, holder, f"input[{place}].id") for place, name in named}

    def read() -> tuple[ChatBody, tuple[Message, ...]]:
        spoken = (*earlier, *bodies.conversation(body, known))
        return bodies.as_chat(body, spoken), spoken

    return await request.app[MODEL].run_in_thread(read)


async def show_response(request: web.Request) -> web.Response:
    """Show a response that is kept; raises ApiError 400, 404."""
    streams = request.query.get("stream", "false") != "false"
    reason = "a stored response is not streamed again; leave it out"
    refuse_asked(("stream", streams, reason), ("starting_after", "starting_after" in request.query, reason))
    return json_response(request.app[STORE].find(request.match_info["id"], holder_of(request), "id").reply)


async def delete_response(request: web.Request) -> web.Response:
    """Forget a response that is kept; raises ApiError 404."""
    name = request.match_info["id"]
    request.app[STORE].remove(name, holder_of(request))
    return json_response(replies.DeletedResponse(name))


def _said_in(items: Sequence[replies.OutputItem]) -> Message:
    texts = [part.text for item in items if isinstance(item, replies.OutputMessage) for part in item.content]
    called = [item for item in items if not isinstance(item, replies.OutputMessage)]
    calls = [PastCall(PastFunction(item.name, Raw(encode(item.arguments))), item.call_id) for item in called]
    return Message("assistant", "".join(texts) if texts else None, tool_calls=calls or None)


EACH = 1000  # bytes, about, of a response's envelope, and of a token's log-probabilities


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """With the conversation up to its end."""

    messages: tuple[Message, ...]
    reply: replies.ResponseObject
    size: int  # bytes, about


class ResponseStore:
    """Recently used ones, seen only by their holder. Event loop only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: Counter[str | None] = Counter()
        self._stored: defaultdict[str | None, OrderedDict[str, StoredResponse]] = defaultdict(OrderedDict)

    def add(self, holder: str | None, spoken: tuple[Message, ...], reply: replies.ResponseObject) -> None:
        """Beyond the bound, the largest holder loses its least recently used."""
        messages = (*spoken, _said_in(reply.output))
        told = (part for item in reply.output if isinstance(item, replies.OutputMessage) for part in item.content)
        size = EACH + sum(len(part.text) + EACH * len(part.logprobs) for part in told)
        texts = [text for one in messages for text in astuple(one) if isinstance(text, str)]
        size += EACH // 4 * len(messages) + sum(map(len, texts))
        calls = [call.function for one in messages for call in one.tool_calls or () if call.function]
        size += sum(EACH // 4 + len(memoryview(call.arguments)) + len(call.input or "") for call in calls)
        size += len(encode([reply.instructions, reply.metadata, reply.text, reply.tools]))
        self._stored[holder][reply.id] = StoredResponse(messages, reply, size)
        self._sizes[holder] += size
        while self._sizes.total() > self._capacity:
            [(fullest, _)] = self._sizes.most_common(1)
            _, oldest = self._stored[fullest].popitem(last=False)
            self._sizes[fullest] -= oldest.size

    def find(self, name: str, holder: str | None, param: str) -> StoredResponse:
        """Raises ApiError 404."""
        found = self._stored[holder].get(name)
        if found is None:
            fault = f"no response {name[:200]!r} is kept here: it was not stored, or is too long ago"
            raise invalid(param, fault, "response_not_found", status=404)
        self._stored[holder].move_to_end(name)
        return found

    def find_item(self, name: str, holder: str | None, param: str) -> Message:
        """As a turn; raises ApiError 404. Its id has the response's digits."""
        response = re.sub(r"^[a-z]+_([0-9a-f]{32}).*", r"resp_\1", name)
        found = self.find(response, holder, param).reply.output if response in self._stored[holder] else ()
        items = [item for item in found if item.id == name]
        if not items:
            fault = f"no item {name[:200]!r} is kept here: its response was not stored, or is too long ago"
            raise invalid(param, fault, "item_not_found", status=404)
        return _said_in(items)

    def remove(self, name: str, holder: str | None) -> None:
        """Raises ApiError 404."""
        self._sizes[holder] -= self.find(name, holder, "id").size
        del self._stored[holder][name]


STORE = web.AppKey("responses", ResponseStore)
