"""What reaches a backend: paths, headers, keys and bodies; and what is kept apart or refused."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.server.gateway.backends import Gateway, gateway
from tests.server.gateway.test_hostile import CHAT, EVENTS, Hostile, answer, plain, serves_others, tracebacks

TARGETS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E%2e/admin", "/v1/.%2e/admin", "/v1/x/../../admin"),
            *("/v1/./chat/completions", "/v1/%2e/chat/completions", "/v1/x/%2e%2e/chat/completions"),
            *("/v1/chat%2Fcompletions", "/v1/chat%2fcompletions", "/v1/chat%5Ccompletions", "/v1/chat\\completions"),
            *("/v1//chat/completions", "/v1/chat//completions", "/v1/chat/completions/", "/v1/models/"),
            *("/v1/chat/completions/.", "/tokenize/../admin", "/%2e/tokenize", "/x/../tokenize", "/tokenize;x"),
            *("/v1/chat;x=1/completions", "/v1/chat/completions;x", "/v1/chat%3Bx/completions", "/v1/;/models"),
            *("/v1/%252e%252e/admin", "/v1/chat%252Fcompletions", "/v1/%25", "/v1/%", "/v1/%zz", "/v1/%u002e"),
            *("/v1/x%00", "/v1/x%0d%0aX:1", "/v1/x%20y", "/v1/x%7f", "/v1/%ff", "/v1/%c0%ae%c0%ae/x", "/v1/%ef%bc%8e"),
            *("/v1/models/../admin", "/v1/models/a%2F..%2F..%2Fadmin", "/v1/models/a%2f%2fb", "/v1/models/%2e%2e"),
            *("http://evil/v1/../admin", "http://evil/v1/%2e%2e/admin", "/v1/models%2Fa", "/v1/x%3Fy", "/v1/x%23y"),
        ),
        400,
    ),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unknown/path", "/v1/chat", "http://evil/v1/unknown"), 404),
    **dict.fromkeys(("/tokenize/", "//tokenize", "/tokenizer_info", "/detokenize/x"), 404),
    **dict.fromkeys(("//v1/models", "/v2/models", "/v1", "/", "/admin", "/V1/models", "/v1/Models", "*"), 404),
}  # fmt: skip


async def raw(gate: Gateway, method: str, target: str, *headers: str, body: bytes = b"{}") -> tuple[int, bytes]:
    url = gate.client._base_url
    assert url is not None and url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    own = ("Host: 127.0.0.1", f"Content-Length: {len(body)}", "Connection: close")
    head = (f"{method} {target} HTTP/1.1", *own, *headers)
    writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
    told = await reader.read()
    writer.close()
    return int(told.split()[1]), told


async def test_a_path_has_one_reading_and_unknown_ones_are_not_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    hostile = Hostile()
    async with gateway(hostile, backend_api_key="theirs") as gate:
        for target, status in TARGETS.items():
            for method in ("POST", "DELETE") if status == 400 else ("POST",):
                found = (await raw(gate, method, target))[0]
                assert found == status or {found, status} <= {400, 404, 405}, (target, found)
        assert hostile.heads == []
        for target, sent in {
            "/v1/models?x=%2e%2e&y=a%2Fb": "/v1/models?x=%2e%2e&y=a%2Fb",
            "/v1/models/org%2Fname": "/v1/models/org/name",
            "/v1/models/org/%6eame": "/v1/models/org/name",
            "/v1/%65mbeddings?a=1?b": "/v1/embeddings?a=1?b",
            f"http://evil{CHAT}?a": f"{CHAT}?a",
            "/v1/%63hat/completions": CHAT,
            "/%74okenize?a=%2F": "/tokenize?a=%2F",
            "/detokenize": "/detokenize",
        }.items():
            method = "GET" if "/models" in target else "POST"
            hostile.pages.clear()
            before = len(hostile.heads)
            assert (await raw(gate, method, target))[0] == 200, target
            if "/v1/models?" not in target:
                assert hostile.heads[before].split()[1].decode() == sent
        await serves_others(gate, hostile)
    assert tracebacks(caplog) == []


SENT: Mapping[str, str] = {
    **{"TE": "trailers", "Trailer": "X", "Keep-Alive": "timeout=5", "Upgrade": "h2c", "Accept-Encoding": "gzip"},
    **{"Proxy-Authorization": "Basic eDp5", "Proxy-Connection": "keep-alive"},
    **dict.fromkeys(("Proxy-Foo", "X-Hop", "x_hop"), "1"),
    **dict.fromkeys(("X-Forwarded-For", "X_Forwarded_For", "X-Real-IP", "True-Client-IP"), "1.2.3.4"),
    **dict.fromkeys(("Forwarded", "X-Forwarded"), "for=1.2.3.4"),
    **{"X-Forwarded-Host": "evil", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/x"},
    **{"X-Original-URL": "/admin", "X-HTTP-Method-Override": "DELETE"},
    **dict.fromkeys(("x-api-key", "api-key", "X-Goog-Api-Key"), "alice"),
    **{"Authorization": "Bearer alice", "Cookie": "theme=dark; key=alice"},
}


OURS = {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "http", "accept-encoding": "identity"}


def headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


KEYS = [
    (("alice",), {}, None),
    (("alice",), {"backend_api_key": "theirs"}, "Bearer theirs"),
    (("alice",), {"pass_client_keys": True}, "Bearer alice"),
    ((), {}, "Bearer alice"),
    ((), {"backend_api_key": "theirs"}, "Bearer theirs"),
]


@pytest.mark.parametrize(("keys", "settings", "authorization"), KEYS)
async def test_no_header_of_a_connection_and_no_key_reaches_a_backend(
    keys: tuple[str, ...], settings: dict[str, Any], authorization: str | None
) -> None:
    hostile = Hostile()
    async with gateway(hostile, keys=keys, **settings) as gate:
        lines = [*(f"{name}: {value}" for name, value in SENT.items()), "Connection: X-Hop", "X-Kept: yes"]
        for target in (CHAT, "/v1/embeddings", "/tokenize"):
            assert (await raw(gate, "POST", target, *lines))[0] == 200
            got = headers_of(hostile.heads[-1])
            assert got.pop("authorization", None) == authorization
            assert ("x-api-key" in got, "api-key" in got) == ((authorization == "Bearer alice"),) * 2
            left = {name: got[name] for name in got if name in {one.lower() for one in SENT} - {"x-api-key", "api-key"}}
            kept = {name: left.pop(name, None) for name in ("x-goog-api-key", "cookie")}
            assert any(kept.values()) == all(kept.values()) == (not keys or bool(settings.get("pass_client_keys")))
            assert left == OURS and got["x-kept"] == "yes"
            own = (await raw(gate, "POST", f"{target}?a=1&key=%61lice", "Authorization: Bearer alice"))[0]
            assert own == (200 if kept["cookie"] else 400)
        assert (await raw(gate, "POST", CHAT, *lines[-3:], "Authorization: Bearer alice", "X-A: \xe9"))[0] == 400
        hostile.kind = answer(EVENTS, b"Connection: X-Hop", b"X-Hop: 1", b"Proxy-Authenticate: Basic", b"Trailer: x")
        for target in (CHAT, "/v1/embeddings"):
            told = (await raw(gate, "POST", target, "Authorization: Bearer alice"))[1].lower()
            assert not any(name in told for name in (b"x-hop", b"proxy-", b"trailer"))


async def test_cookies_of_one_client_reach_no_other() -> None:
    hostile = Hostile(answer(EVENTS, b"Set-Cookie: sid=alice"))
    async with hostile.listening() as url, gateway(url.replace("127.0.0.1", "localhost")) as gate:
        for _ in range(2):
            await raw(gate, "POST", CHAT)
        assert all("cookie" not in headers_of(head) for head in hostile.heads)


async def test_each_backend_has_the_key_of_its_file(tmp_path: Any) -> None:
    first, second = Hostile(), Hostile()
    (tmp_path / "key").write_text("first-key\n")
    async with (
        first.listening() as one,
        gateway(f"{one}={tmp_path / 'key'}", second, backend_api_key="common", slots=1) as gate,
    ):
        await asyncio.gather(*(gate.ask() for _ in range(20)))
        assert str(tmp_path) not in gate.service.name
        assert {headers_of(head)["authorization"] for head in first.heads} == {"Bearer first-key"}
        assert {headers_of(head)["authorization"] for head in second.heads} == {"Bearer common"}


BODIES: Mapping[str, dict[str, Any]] = {
    "a response": {"previous_response_id": "resp_1"},
    "a conversation": {"conversation": {"id": "conv_1"}},
    "a file": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
    "a picture": {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
    "a file of a chat": {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
    "a document": {"messages": [{"content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]},
    "an item": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "an item without a type": {"input": [{"id": "msg_1"}]},
    "a prompt": {"prompt": {"id": "pmpt_1", "version": "2"}},
    "a file's search": {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    "a container": {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
    "a container of messages": {"container": {"id": "cntr_1", "skills": []}},
    "a container's shell": {"tools": [{"type": "shell", "environment": {"container_id": "cntr_1"}}]},
    "a prompt with more": {"prompt": {"id": "pmpt_1", "cache_control": {}}},
    "an item with more": {"input": [{"type": "item_reference", "id": "msg_1", "x": 1}]},
    "an item of null": {"input": [{"id": "msg_1", "status": None}]},
    "a file by number": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": 7}]}]},
    "a search at the top": {"tool_resources": {"file_search": {"vector_store_ids": ["vs_1"]}}},
    "blocks of a KV cache": {"kv_transfer_params": {"remote_block_ids": [1]}},
    "a spoken answer": {"messages": [{"role": "assistant", "audio": {"id": "audio_1", "x": 1}}]},
}


HARMLESS: tuple[dict[str, Any], ...] = (
    {"previous_response_id": None, "input": [{"type": "message", "role": "user", "id": "m", "content": "file_id"}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": {"file_id": "f"}}]}]},
    {"tools": [{"type": "function", "function": {"parameters": {"properties": {"file_id": {"type": "string"}}}}}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": '{"file_id": "f"}'}}]}]},
    {"tools": [{"type": "function", "function": {"parameters": {"properties": {"id": {"type": "string"}}}}}]},
    {"metadata": {"id": "a", "file_id": "f"}, "tools": [{"name": "f", "input_examples": [{"id": "a"}]}]},
)


KEPT = (
    *("GET /v1/files", "GET /v1/files/a/content", "DELETE /v1/files/a", "POST /v1/batches", "GET /v1/responses/resp_1"),
    *("DELETE /v1/responses/resp_1", "POST /v1/conversations", "GET /v1/threads/a/runs", "GET /v1/chat/completions"),
    *("POST /v1/messages/batches", "POST /v1/requests/a/b/cancel"),
)


async def test_what_a_backend_keeps_is_kept_apart_or_refused() -> None:
    """With one key at the backend, a client could read and delete another's files, and cancel its calls."""
    hostile = Hostile()
    async with gateway(hostile, keys=("alice", "bob"), pass_unknown=True) as gate:
        for kind, body in BODIES.items():
            for spelling in (json.dumps(body), json.dumps(body).replace("id", "\\u0069d")):
                asked = spelling.encode()
                status, told = await raw(gate, "POST", "/v1/responses", "Authorization: Bearer bob", body=asked)
                assert (status, b"not_kept_apart" in told) == (403, True), kind
            for path in ("/v1/images/edits", "/v1/embeddings", "/v1/messages/count_tokens", "/v1/unknown", "/tokenize"):
                assert (await raw(gate, "POST", path, "Authorization: Bearer bob", body=asked))[0] == 403, (path, kind)
        for line in KEPT:
            assert (await raw(gate, *line.split(), "Authorization: Bearer bob"))[0] == 403, line
        assert hostile.heads == []
        for body in HARMLESS:
            asked = json.dumps(body).encode()
            assert (await raw(gate, "POST", CHAT, "Authorization: Bearer bob", body=asked))[0] == 200, body
    for keys, passed in ((("bob",), False), (("alice", "bob"), True)):
        settings = {"pass_client_keys": passed, "pass_unknown": True}
        async with gateway(hostile, keys=keys, **settings) as gate:
            for line in KEPT:
                assert (await raw(gate, *line.split(), "Authorization: Bearer bob"))[0] == 200, line


@pytest.mark.parametrize("keys", [(), ("alice", "bob")])
async def test_a_body_is_passed_on_or_refused_by_how_deep_it_is(keys: tuple[str, ...]) -> None:
    """Some depths were answered "maximum recursion depth exceeded", others passed on, by the version of Python."""
    async with gateway(Hostile(), keys=keys) as gate:
        for opened, closed in ((b"[", b"]"), (b'{"x":', b"}")):
            for depth, status in ((256, 200), (257, 400), (20_000, 400)):
                body = b'{"x":%b1%b}' % (opened * (depth - 1), closed * (depth - 1))
                answered, told = await raw(gate, "POST", CHAT, "Authorization: Bearer bob", body=body)
                assert (answered, b"nested more than 256 deep" in told) == (status, status == 400), (depth, told)


async def test_prompts_are_kept_apart_by_a_salt_of_each_key_where_the_engine_takes_one() -> None:
    hostile, own = Hostile(pages={"/metrics": plain(b"x 1\nvllm:num_requests_running 0\n")}), b'{"cache_salt": "mine"}'
    async with gateway(hostile, keys=("alice", "bob")) as gate:
        for body in (b"{}", own, b'{"c\\u0061che_salt": "mine"}', b'{"cache_salt": "a", "cache_salt": "mine"}'):
            for key in ("alice", "bob"):
                await raw(gate, "POST", CHAT, f"Authorization: Bearer {key}", body=body)
        salts = [json.loads(body)["cache_salt"] for body in hostile.bodies]
        assert len({*salts[:4]}) == 4 and salts[2:4] == salts[4:6] == salts[6:8] and "mine" not in salts
        await raw(gate, "POST", "/v1/messages", "Authorization: Bearer bob", body=b'{"a":  1}')
        assert hostile.bodies[-1] == b'{"a":  1}'
    hostile.pages.clear()
    async with gateway(hostile, keys=("alice", "bob")) as gate:
        await raw(gate, "POST", CHAT, "Authorization: Bearer bob", body=own)
        assert json.loads(hostile.bodies[-1])["cache_salt"] == "mine"


@pytest.mark.parametrize("keys", [("a",), ("a", "b")])
async def test_all_work_that_is_passed_on_counts_in_the_quota_of_its_key(keys: tuple[str, ...]) -> None:
    """Reads of files used it up, even those that were refused where several keys share a backend."""
    hostile = Hostile()
    async with gateway(hostile, keys=keys, requests_per_minute=6, pass_unknown=True) as gate:
        for method, path in (("GET", "/v1/files"), ("DELETE", "/v1/files/f"), ("GET", "/v1/any")):
            for _ in range(8):
                status = (await raw(gate, method, path, "Authorization: Bearer a"))[0]
                assert status == (403 if "files" in path and len(keys) > 1 else 200)
        paths = (CHAT, "/v1/embeddings", "/v1/audio/speech", "/v1/unknown", "/v1/rerank", "/v1/files", "/v1/embeddings")
        statuses = [(await raw(gate, "POST", path, "Authorization: Bearer a"))[0] for path in paths]
        assert statuses == [200] * 5 + ([200, 429] if len(keys) == 1 else [403, 200])
        assert (await raw(gate, "GET", "/v1/models", "Authorization: Bearer a"))[0] == 200


NUMBERS = ("deadline_ms", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "priority")


@pytest.mark.parametrize("digits", [20, 400, 5000])
async def test_numbers_of_many_digits_are_refused_unsent(digits: int, caplog: pytest.LogCaptureFixture) -> None:
    hostile = Hostile()
    async with gateway(hostile) as gate:
        for name in NUMBERS:
            for sign in ("", "-"):
                body = f'{{"{name}": {sign}{"9" * digits}}}'.encode()
                assert (await raw(gate, "POST", CHAT, body=body))[0] == 400, (name, sign)
        for text in (b'"\xff"', b'"\\ud800"', b"[" * 5000, b'{"a": ' * 5000):
            body = b'{"messages": [{"content": %b}]}' % text
            assert (await raw(gate, "POST", CHAT, body=body))[0] == 400, text[:9]
        assert hostile.heads == []
    assert tracebacks(caplog) == []
