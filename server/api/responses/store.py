"""Responses that are kept so that a later one can go on from them, in memory, by their holder's key, up to a bound."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass

from aiohttp import web

from server.api.errors import ApiError
from server.api.input.schema import Message
from server.api.output.reply import encode
from server.api.responses.reply import OutputMessage, ResponseObject

EACH = 1000
"""Bytes of a response besides what is in it, and of a token's log-probabilities, about."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and the conversation up to its end."""

    messages: tuple[Message, ...]
    reply: ResponseObject
    size: int
    """Bytes that it counts for, about."""


class ResponseStore:
    """The responses of each holder that were used last. A holder sees only its own. Event loop only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: Counter[str | None] = Counter()
        self._stored: defaultdict[str | None, OrderedDict[str, StoredResponse]] = defaultdict(OrderedDict)

    def add(self, holder: str | None, messages: tuple[Message, ...], reply: ResponseObject) -> None:
        """Keep a response. When the bound is passed, the holder who has most loses those used least recently."""
        told = (part for item in reply.output if isinstance(item, OutputMessage) for part in item.content)
        size = EACH + sum(len(part.text) + EACH * len(part.logprobs) for part in told)
        size += sum(EACH // 4 + len(one.content or "") for one in messages)
        size += sum(EACH // 4 + len(call.function.arguments) for one in messages for call in one.tool_calls or ())
        size += len(encode([reply.instructions, reply.metadata, reply.text, reply.tools]))
        self._stored[holder][reply.id] = StoredResponse(messages, reply, size)
        self._sizes[holder] += size
        while self._sizes.total() > self._capacity:
            [(fullest, _)] = self._sizes.most_common(1)
            _, oldest = self._stored[fullest].popitem(last=False)
            self._sizes[fullest] -= oldest.size

    def find(self, name: str, holder: str | None, param: str) -> StoredResponse:
        """The response of an id; raises ApiError 404 for one that is unknown, forgotten or another's."""
        found = self._stored[holder].get(name)
        if found is None:
            message = f"{param}: no response {name[:200]!r} is kept here: it was not stored, or is too long ago"
            raise ApiError(404, message, param=param, code="response_not_found")
        self._stored[holder].move_to_end(name)
        return found

    def remove(self, name: str, holder: str | None) -> None:
        """Forget a response; raises ApiError 404 for one that is unknown, forgotten or another's."""
        self._sizes[holder] -= self.find(name, holder, "id").size
        del self._stored[holder][name]


STORE = web.AppKey("responses", ResponseStore)
