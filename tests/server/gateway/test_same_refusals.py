"""Wrong values get the same status, `param` and `code` from a gateway as from the server behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from server.gateway.probe import UNSERVED
from server.observe.metrics import MetricsCollector
from tests.server.gateway.backends import gateway
from tests.server.gateway.test_hostile import Hostile, answer, plain
from tests.server.live import NO_HEADERS, Live, bearer, chat_body, live_server

PROMPTS: Mapping[str, tuple[Any, ...]] = {
    "messages": ("x", 5, None, [], ["x"], [{}], [{"role": 5}], [{"role": "user", "content": 7}]),
    "prompt": (5, [], [1.5], [[True]], [1] * 5000, "xxxxxxxx " * 5000),
    "input": (7, [], ["x"]),
    "x": (1,),
}
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "model": (5, "nope"),
    "max_tokens": (-1, -2, 0, 1.5, "many", True, 2**63, 10**400),
    "max_completion_tokens": (-1, -2, [5]),
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
    *({name: wrong} for name, all_wrong in PROMPTS.items() for wrong in all_wrong),
    *(chat_body(**{name: wrong}) for name, all_wrong in {**FIELDS, **OWN}.items() for wrong in all_wrong),
]


async def refusals(
    live: Live, path: str, body: object, *keys: str, headers: Mapping[str, str] = NO_HEADERS
) -> list[tuple[int, Any, Any]]:
    """Of the server, and of a gateway before it with these keys."""
    found = []
    async with gateway(f"{live.url}/v1", keys=keys) as gate:
        for url in (live.url, str(gate.client._base_url).rstrip("/")):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent = {**headers, **(bearer(keys[0]) if keys else {})}
            async with live.session.post(url + path, data=data, headers=sent) as told:
                error = (await told.json()).get("error", {})
                found.append((told.status, error.get("param"), error.get("code")))
    return found


@pytest.mark.parametrize("body", IMPOSSIBLE, ids=lambda body: str(body)[:60])
async def test_no_time_is_estimated_for_a_call_that_the_server_refuses(body: dict[str, Any]) -> None:
    """A gateway gave one for a conversation that was a number, an unknown model, and a prompt beyond the context."""
    async with live_server(metrics=MetricsCollector("m")) as live:
        own, its = await refusals(live, "/v1/estimate", body)
        assert own == its and own[0] >= 400


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
@pytest.mark.parametrize("body", CALLS, ids=lambda body: str(body)[-60:])
async def test_a_call_that_the_server_refuses_is_refused_alike(body: Any, keys: tuple[str, ...]) -> None:
    """Codes differed, and a `stream` of 0 and a salt that is no text were sent on as other values."""
    async with live_server(metrics=MetricsCollector("m")) as live:
        own, its = await refusals(live, CHAT, body, *keys)
        assert own == its and own[0] == 400


@pytest.mark.parametrize("value", ["x", "{}", "[]", '{"within_ms": 0}', '{"by": "soon"}', '{"x": 1}'])
async def test_a_promise_in_a_header_is_refused_alike(value: str) -> None:
    async with live_server() as live:
        own, its = await refusals(live, CHAT, chat_body(), headers={"X-Lengthwise-Promise": value})
        assert own == its and own[0] == 400


@pytest.mark.parametrize("fields", [{"priority": -(2**31)}, {"priority": 1.0}, {"stream": None, "promise": None}])
async def test_a_call_that_the_server_takes_is_taken(fields: dict[str, Any]) -> None:
    async with live_server() as live:
        assert await refusals(live, CHAT, chat_body(max_tokens=2, **fields)) == [(200, None, None)] * 2


async def test_a_gateway_without_backends_that_answer_says_so() -> None:
    async with gateway("http://127.0.0.1:9/v1") as gate:
        assert "no backend answers" in (await gate.get("/health/ready"))["error"]["message"]


LONG = [{"role": "user", "content": [{"type": "text", "text": "token " * 20_000}]}]
POSSIBLE: list[dict[str, Any]] = [
    {"messages": [{"role": "critic", "content": None}, {"role": "user", "content": [{"type": "image", "url": "x"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 100_000}}]}]},
    {"messages": LONG, "truncate_prompt_tokens": -1},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}], "truncation": "auto"},
    *({"prompt": given} for given in ("", {"id": "pmpt_1"}, ["a"] * 9000, [[1, 2], [3]])),
    {"prompt": "x", "echo": True, "max_tokens": 0},
    chat_body(model="llama3.2", max_tokens=-1, stop=["x"], temperature=9, prompt=None),
]
MODELS = b'{"data": [{"id": "llama3.2:latest", "max_model_len": 8192}]}'


async def test_what_a_backend_may_take_is_estimated_and_what_none_takes_is_not() -> None:
    async with gateway(Hostile(pages={"/v1/models": plain(MODELS)})) as gate:
        for body in POSSIBLE:
            async with gate.client.post("/v1/estimate", json=body) as told:
                assert told.status == 200, (body, await told.text())
        for body in ({"messages": LONG}, {"prompt": [[1], [1] * 20_000]}, {"input": LONG}):
            async with gate.client.post("/v1/estimate", json=body) as told:
                error = (await told.json())["error"]
                assert (told.status, error["param"], error["code"]) == (400, *body, "context_length_exceeded")


@pytest.mark.parametrize(("takes", "status"), [(b"404 Not Found", 404), (b"200 OK", 200)])
async def test_a_model_is_unknown_only_where_backends_take_no_others_than_they_list(takes: bytes, status: int) -> None:
    pages = {"/v1/models": plain(MODELS), "/metrics": plain(b"vllm:x 1\n")}
    pages[f"/v1/models/{UNSERVED}"] = answer(b"{}", status=takes)
    async with gateway(Hostile(pages=pages)) as gate:
        for model, expected in (("llama3.2:latest", 200), ("claude-9", status)):
            async with gate.client.post("/v1/estimate", json=chat_body(model=model)) as told:
                assert told.status == expected
