"""Fields that the API does not have are named in a header, or refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from server.api.input.fields import IGNORED_HEADER, MANY, MOST, list_unknown
from server.api.input.schema import ChatBody
from server.api.limits import Limits
from tests.server.live import Live, live_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
MESSAGES = {**CHAT, "max_tokens": 5}


async def ignored(live: Live, path: str, body: dict[str, Any]) -> str | None:
    """The header of an answer that must succeed."""
    async with live.session.post(live.url + path, data=orjson.dumps(body)) as response:
        assert response.status == 200, await response.text()
        return response.headers.get(IGNORED_HEADER)


@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_are_named_in_a_header(live: Live, stream: bool) -> None:
    chat = "/v1/chat/completions"
    assert await ignored(live, chat, {**CHAT, "stream": stream}) is None
    assert await ignored(live, chat, {**CHAT, "stream": stream, "user": "me", "store": True}) is None
    assert await ignored(live, chat, {"max_token": 5, **CHAT, "stream": stream, "topp": 1}) == "max_token, topp"
    assert await ignored(live, "/v1/messages", {**MESSAGES, "stream": stream, "user": "me", "metadata": {}}) == "user"
    assert await ignored(live, "/tokenize", {"prompt": "a", "promt": "b"}) == "promt"


async def test_a_name_cannot_forge_a_header(live: Live) -> None:
    body = {**CHAT, "a\r\nSet-Cookie: b, ü": 1, "x" * 100: 1, **{str(place): 1 for place in range(100)}}
    told = await ignored(live, "/v1/chat/completions", body)
    assert told is not None and told.startswith("a??Set-Cookie:?b???, xxx")
    assert len(told.split(", ")) == MOST


async def test_unknown_fields_may_be_errors(pool: ThreadPoolExecutor) -> None:
    async with live_server(pool, Limits(refuse_unknown_fields=True)) as live:
        status, reply = await live.post("/v1/chat/completions", {**CHAT, "max_token": 5})
        assert (status, reply["error"]["param"], reply["error"]["code"]) == (400, "max_token", "unknown_field")
        status, _ = await live.post("/v1/chat/completions", {**CHAT, "user": "me"})
        assert status == 200


def test_a_body_of_names_alone_is_not_searched() -> None:
    many = orjson.dumps({str(place): 1 for place in range(MANY + 1)})
    assert list_unknown(many, ChatBody) == ()
    assert len(list_unknown(many, ChatBody, thoroughly=True)) == MANY + 1


def test_fields_of_a_schema_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were at each request, on the event loop, for a millisecond."""
    assert list_unknown(b'{"a": 1}', ChatBody) == ("a",)
    monkeypatch.setattr("msgspec.structs.fields", pytest.fail)
    assert list_unknown(b'{"b": 1}', ChatBody) == ("b",)
