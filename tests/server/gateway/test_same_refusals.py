"""Wrong values get the same status, `param` and `code` from a gateway as from the server behind it."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from server.http.operations import OPERATIONS
from tests.server.gateway.backends import Gateway, gateway
from tests.server.gateway.test_hostile import Hostile
from tests.server.live import NO_HEADERS, Live, bearer, chat_body, live_server

PROMPTS: Mapping[str, tuple[Any, ...]] = {
    "messages": ("x", 5, None, [], ["x"], [{}], [{"role": 5}], [{"role": "user", "content": 7}]),
    "prompt": (5, [], [1.5], [[True]]),
    "input": (7, [], ["x"]),
    "x": (1,),
}
RESPONSES: list[dict[str, Any]] = [
    {"input": "x", **one} for one in ({"max_output_tokens": 0}, {"instructions": "x" * 9000})
]
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "model": (5, "nope"),
    "prompt": ("x", [1]),
    "input": ("x",),
    "max_tokens": (-1, -2, 0, 1.5, "many", True, 2**63, 10**400),
    "max_completion_tokens": (-1, 0, -2, [5]),
    "temperature": (-1, 9),
    "response_format": ({"type": "x"},),
    "audio": ({"voice": "x"},),
    "n": (0, 65, "two"),
    **dict.fromkeys(("ignore_eos", "user", "min_tokens"), (["x"], {})),
    "stream_options": (0, "x", [{}]),
    "tools": (5, "x", {}),
}
OWN: Mapping[str, tuple[Any, ...]] = {
    "stream": (0, 1, 0.0, "yes", [], {}),
    "priority": (1.5, "high", True, 2**31, -(2**31) - 1, 10**400, [1]),
    "deadline_ms": (0, -1, "soon", True, 10**9, [1], {}),
    "promise": (5, "x", [], {}, {"within_ms": 0}, {"within_ms": "soon"}, {"by": "soon"}, {"x": 1}),
    "cache_salt": (5, "", ["x"]),
}
IMPOSSIBLE = [
    *RESPONSES,
    *({name: wrong} for name, all_wrong in PROMPTS.items() for wrong in all_wrong),
    *(chat_body(**{name: wrong}) for name, all_wrong in {**FIELDS, **OWN}.items() for wrong in all_wrong),
]


async def refusals(
    live: Live, gate: Gateway, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS
) -> list[tuple[int, Any, Any]]:
    """Of the server, and of a gateway before it."""
    found, data = [], body if isinstance(body, bytes) else json.dumps(body).encode()
    for url in (live.url, str(gate.client._base_url).rstrip("/")):
        async with live.session.post(url + path, data=data, headers=headers) as told:
            error = (await told.json()).get("error", {})
            found.append((told.status, error.get("param"), error.get("code")))
    return found


async def test_no_time_is_estimated_for_a_call_that_the_server_refuses() -> None:
    """A gateway gave one for a conversation that was a number."""
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        for body in IMPOSSIBLE:
            own, its = await refusals(live, gate, "/v1/estimate", body)
            assert own == its and own[0] in (400, 404), body


BEHIND = (chat_body(model="nope"), chat_body(temperature=9), {"prompt": [10**9]}, {"prompt": [1] * 5000})


async def test_a_prompt_of_another_type_is_refused_in_the_server_s_words() -> None:
    """A gateway wanted `array | null` for what may not be null."""
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        wrong: list[dict[str, Any]] = [{"messages": "x"}, {"messages": {}}, {"prompt": 5}, {"input": 7}]
        for body in wrong:
            message = (await live.refused("/v1/estimate", body))["message"]
            its = await gate.post("/v1/estimate", body)
            assert its.json["error"]["message"] == message and "null" not in message


PLACES = ("/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x", "/v1/batches/x/cancel")


@pytest.mark.parametrize("path", [*PLACES, "/v1/responses", "/v1/responses/x", "/v1/models/x", "/v1/requests/x"])
async def test_a_wrong_method_is_told_the_methods_of_its_path(path: str) -> None:
    """A gateway named all that it passes on, and a POST to an id was told that there is nothing."""
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        for method in ("PUT", "PATCH", "POST"):
            own, its = await live.ask(method, path, b"{}"), await gate.call(method, path, data=b"{}")
            allow = own.headers.get("Allow")
            assert (its.status, its.headers.get("Allow")) == (own.status, allow)
            assert own.status == 405 and allow or method == "POST" and "POST" in allow_of(path)


def allow_of(path: str) -> set[str]:
    found = (one for one in OPERATIONS if re.fullmatch(re.sub(r"{.*?}", "[^/]+", one.path), path))
    return {one.method.upper() for one in found}


async def test_a_request_id_that_is_no_text_is_replaced_or_shortened_alike() -> None:
    """A gateway refused the call."""
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        for sent, returned in ((b"a\xffb", b"ab"), (b"x" * 500, b"x" * 128)):
            for port in (live.port, gate.client._base_url.port):  # type: ignore[union-attr]
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                body = json.dumps(chat_body(max_tokens=2)).encode()
                head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Request-Id: %b\r\n"
                writer.write(head % (CHAT.encode(), sent) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
                told = await reader.read()
                writer.close()
                assert told.startswith(b"HTTP/1.1 200 ") and b"\r\nx-request-id: %b\r\n" % returned in told.lower()


async def test_no_time_is_estimated_behind_two_gateways_either() -> None:
    async with (
        live_server() as live,
        gateway(f"{live.url}/v1") as inner,
        gateway(f"{inner.client._base_url}v1") as outer,
    ):
        for wrong in BEHIND:
            own, its = await refusals(live, outer, "/v1/estimate", wrong)
            assert own == its and own[0] in (400, 404), wrong
        assert await refusals(live, outer, "/v1/estimate", chat_body(priority=-1)) == [(200, None, None)] * 2


async def test_an_estimate_waits_for_no_backend_that_is_gone() -> None:
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        (worker,) = gate.service.dispatcher.workers
        worker.port.url = "http://127.0.0.1:9/v1"  # type: ignore[attr-defined]
        assert (await gate.post("/v1/estimate", chat_body())).status == 200


CHAT = "/v1/chat/completions"
CALLS = [
    *(chat_body(max_tokens=2, **{name: wrong}) for name, all_wrong in OWN.items() for wrong in all_wrong),
    *(b"", b"[]", b"5", b"x", b"{", b'{"n": NaN}', b'{"a": ' * 3000, b'{"messages": [{"content": "\xff"}]}'),
    *(
        b'{"messages": [{"role": "user", "content": "%b"}]}' % wrong
        for wrong in (b"\\ud800", b"\xff", b"\xff" * 70_000)
    ),
]


@pytest.mark.parametrize("keys", [(), ("a", "b")])
async def test_a_call_that_the_server_refuses_is_refused_alike(keys: tuple[str, ...]) -> None:
    """Codes differed, and a `stream` of 0 and a salt that is no text were sent on as other values."""
    async with live_server() as live, gateway(f"{live.url}/v1", keys=keys) as gate:
        for body in CALLS:
            own, its = await refusals(live, gate, CHAT, body, bearer(keys[0]) if keys else NO_HEADERS)
            assert own == its and own[0] == 400, body


async def test_a_promise_in_a_header_is_refused_and_what_the_server_takes_is_taken_alike() -> None:
    async with live_server() as live, gateway(f"{live.url}/v1") as gate:
        for value in ("x", "{}", "[]", '{"within_ms": 0}', '{"by": "soon"}', '{"x": 1}'):
            own, its = await refusals(live, gate, CHAT, chat_body(), {"X-Lengthwise-Promise": value})
            assert own == its and own[0] == 400, value
        for fields in ({"priority": -(2**31)}, {"priority": 1.0}, {"stream": None, "promise": None}):
            assert await refusals(live, gate, CHAT, chat_body(max_tokens=2, **fields)) == [(200, None, None)] * 2


POSSIBLE: list[dict[str, Any]] = [
    {"messages": [{"role": "critic", "content": None}, {"role": "user", "content": [{"type": "image", "url": "x"}]}]},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}], "truncation": "auto"},
    *({"prompt": given} for given in ("", {"id": "pmpt_1"}, ["a"] * 9000, [[1, 2], [3]])),
    {"prompt": "x", "echo": True, "max_tokens": 0},
    chat_body(model="llama3.2", max_tokens=-1, stop=["x"], temperature=9, prompt=None),
]


async def test_what_a_backend_may_take_is_estimated() -> None:
    async with gateway(Hostile()) as gate:
        for body in POSSIBLE:
            told = await gate.post("/v1/estimate", body)
            assert told.status == 200, (body, told.body)
