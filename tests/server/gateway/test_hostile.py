"""Backends and clients that mean ill, or are broken: none of them harms another call, and none leaves a traceback."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.server.gateway.backends import Gateway, gateway

SLOWEST = 8.0  # seconds of a case on a busy machine
CHAT = "/v1/chat/completions"
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "t"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": %b}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = TOKEN + END + USAGE % b"1" + DONE


def answer(body: bytes, *lines: bytes, status: bytes = b"200 OK", kind: bytes = b"text/event-stream") -> bytes:
    head = (b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"


def bare(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines)) + b"\r\n\r\n" + body


def plain(body: bytes) -> bytes:
    return answer(body, kind=b"application/json")


GOOD, CHUNKED = answer(EVENTS), b"Transfer-Encoding: chunked"
PASSED, BROKEN = {200}, {200, 502}

KINDS: Mapping[str, tuple[bytes, set[int]]] = {
    # headers
    "a redirect": (answer(b"", b"Location: http://127.0.0.1:1/x", status=b"302 Found"), {502}),
    "a redirect of the call itself": (answer(b"", b"Location: /v1/x", status=b"307 Temporary"), {502}),
    "a redirect for ever": (answer(b"", b"Location: /v2", status=b"308 Permanent"), {502}),
    "another protocol": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", {502}),
    "a control character in a header": (answer(EVENTS, b"X-A: a\x01b"), {502}),
    "a bare CR in a header": (answer(EVENTS, b"X-A: a\rSet-Cookie: b"), {502}),
    "NUL in a header": (answer(EVENTS, b"X-A: a\0b"), {502}),
    "latin-1 in a header": (answer(EVENTS, b"X-A: \xe9"), {502}),
    "a line that goes on": (answer(EVENTS, b"X-A: a", b" b"), BROKEN),
    "a header of 100 kB": (answer(EVENTS, b"X-A: " + b"a" * 100_000), {502}),
    "5,000 headers": (answer(EVENTS, *(b"X-%d: a" % n for n in range(5000))), {502, 200}),
    "no colon": (answer(EVENTS, b"nonsense"), {502}),
    "hop-by-hop headers": (answer(EVENTS, b"Connection: X-Hop", b"X-Hop: 1", b"Trailer: X", b"TE: x"), PASSED),
    "a cookie": (answer(EVENTS, b"Set-Cookie: sid=1"), PASSED),
    "a type of nonsense": (answer(EVENTS, kind=b";;=\xc3\xa9;charset=x"), PASSED),
    # lengths and chunks
    "a body that is too short": (bare(EVENTS, b"Content-Type: text/event-stream", b"Content-Length: 9999"), BROKEN),
    "a length of nonsense": (bare(EVENTS, b"Content-Length: x"), {502}),
    "a negative length": (bare(EVENTS, b"Content-Length: -1"), {502}),
    "two lengths": (bare(EVENTS, b"Content-Length: 5", b"Content-Length: 9"), {502}),
    "a length and chunks": (bare(b"5\r\nhello\r\n0\r\n\r\n", b"Content-Length: 5", CHUNKED), BROKEN),
    "no length": (bare(EVENTS, b"Content-Type: text/event-stream"), PASSED),
    "chunks of a byte": (chunked(*(EVENTS[n : n + 1] for n in range(len(EVENTS)))), PASSED),
    "a chunk's size of nonsense": (bare(b"zz\r\nhello", CHUNKED), BROKEN),
    "a chunk beyond memory": (bare(b"ffffffffffffff\r\nhello", CHUNKED), BROKEN),
    "chunks that end too early": (bare(b"ff\r\nhello", CHUNKED), BROKEN),
    "an unknown coding": (bare(EVENTS, b"Transfer-Encoding: nonsense"), BROKEN),
    "gzip": (answer(gzip.compress(EVENTS), b"Content-Encoding: gzip"), PASSED),
    "gzip that is none": (answer(EVENTS, b"Content-Encoding: gzip"), PASSED),
    "a bomb": (answer(gzip.compress(bytes(30_000_000)), b"Content-Encoding: gzip"), PASSED),
    # 1xx, closes, junk
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD, PASSED),
    "103 first": (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + GOOD, BROKEN),
    "100 for ever": (b"HTTP/1.1 100 Continue\r\n\r\n" * 5000, BROKEN),
    "nothing": (b"", {502}),
    "half a status line": (b"HTTP/1.", {502}),
    "half a header": (b"HTTP/1.1 200 OK\r\nContent-Ty", {502}),
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n", {502}),
    "HTTP/9": (b"HTTP/9.9 200 OK\r\n\r\n", BROKEN),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENTS, PASSED),
    "a status of two digits": (b"HTTP/1.1 20 OK\r\n\r\n", {502}),
    "status 999": (answer(b"", status=b"999 No"), {502}),
    "status 0": (answer(b"", status=b"000 No"), {502}),
    "a second answer behind the first": (GOOD + GOOD, PASSED),
    "an answer without a body": (answer(b"", status=b"204 No Content"), {204}),
    # errors
    "an error": (answer(b'{"error": "no"}', status=b"500 No", kind=b"application/json"), {500}),
    "an error in a stream": (answer(b'data: {"error": {"message": "x"}}\n\n' + DONE), PASSED),
    "a busy one": (answer(b"{}", b"Retry-After: 99999999999999999999", status=b"429 No"), {429}),
    # floods
    "a token of 4 MB": (answer(b"data: " + b"x" * 4_000_000 + b"\n\n" + EVENTS), PASSED),
    "500,000 empty events": (answer(b"data: \n\n" * 500_000 + EVENTS), PASSED),
    "deep JSON": (answer(b"data: " + b'{"choices":' * 50_000 + b"\n\n" + EVENTS), PASSED),
    "an index of 400 digits": (answer(TOKEN.replace(b": 0", b": " + b"9" * 400) + EVENTS), PASSED),
    "choices that are none": (answer(b'data: {"choices": {"a": 1}}\n\ndata: [1]\n\ndata: 5\n\n' + EVENTS), PASSED),
    # counts
    "a billion tokens": (answer(TOKEN + END + USAGE % b"999999999" + DONE), PASSED),
    "tokens of 30 digits": (answer(TOKEN + END + USAGE % (b"9" * 30) + DONE), PASSED),
    "tokens of 5,000 digits": (answer(TOKEN + END + USAGE % (b"9" * 5000) + DONE), PASSED),
    "fewer than no tokens": (answer(TOKEN + END + USAGE % b"-5" + DONE), PASSED),
    "tokens by words": (plain(b'{"choices": [], "usage": {"completion_tokens": "many"}}'), PASSED),
    "an echo of a billion tokens": (plain(b'{"input": {"usage": {"completion_tokens": 999999999}}}'), PASSED),
}


@dataclass(eq=False)
class Hostile:
    """Answers calls with the bytes of a kind, and questions about itself with those given."""

    kind: bytes = GOOD
    pages: dict[str, bytes] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head.lower())
            body = await reader.readexactly(int(size[1])) if size else b""
            path = head.split()[1].decode()
            if path in ("/props", "/metrics", "/v1/models", *self.pages):
                writer.write(self.pages.get(path, plain(b"{}")))
            else:
                self.heads.append(head)
                self.bodies.append(body)
                writer.write(self.kind)
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.probe.PERIOD", 0.01)


async def serves_others(gate: Gateway, hostile: Hostile) -> None:
    """Another call is answered, and nothing is left of the one before."""
    hostile.kind = GOOD
    assert await gate.ask() == (200, EVENTS)
    assert gate.under_way == 0
    load = await gate.get("/load")
    assert 0 <= (load["mean_output_tokens"] or 0) <= 5_000_000


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of faults; what is no HTTP is told by the connection, of which a test has aiohttp's own."""
    own = [record for record in caplog.records if record.name != "aiohttp.server"]
    return [record.getMessage() for record in own if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
async def test_no_answer_of_a_backend_harms_another_call(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    hostile = Hostile()
    async with gateway(hostile) as gate, asyncio.timeout(SLOWEST * 2):
        for stream in (True, False):
            hostile.kind, statuses = KINDS[kind]
            began, status = time.perf_counter(), 0
            with suppress(Exception):  # an answer that breaks off
                status, _ = await gate.ask(stream=stream)
            assert status in statuses or not status and statuses & BROKEN <= BROKEN, status
            assert time.perf_counter() - began < SLOWEST
            await serves_others(gate, hostile)
        listed = (await gate.get("/v1/requests"))["data"]
        assert all(one["generated_tokens"] <= 5_000_000 for one in listed)
    assert tracebacks(caplog) == []


PAGE = b'vllm:cache_config_info{num_gpu_blocks="%b",block_size="%b"} 1\n'

PAGES: Mapping[str, tuple[str, bytes]] = {
    "no slots": ("/props", plain(b'{"total_slots": 0}')),
    "fewer than no slots": ("/props", plain(b'{"total_slots": -5}')),
    "slots beyond count": ("/props", plain(b'{"total_slots": 10000000000000000000000}')),
    "slots of 1e22": ("/props", plain(b'{"total_slots": 1e22}')),
    "slots by name": ("/props", plain(b'{"total_slots": ["4"]}')),
    "deep slots": ("/props", plain(b'{"total_slots": ' + b"[" * 200_000)),
    "props of 3 MB": ("/props", plain(b'{"a": "' + b"x" * 3_000_000 + b'", "total_slots": 0}')),
    "props that are no UTF-8": ("/props", plain(b'{"\xff": 1}')),
    "pages of 5,000 digits": ("/metrics", plain(PAGE % (b"9" * 5000, b"16"))),
    "no pages": ("/metrics", plain(PAGE % (b"0", b"16"))),
    "one page of one token": ("/metrics", plain(PAGE % (b"1", b"1"))),
    "pages without end": ("/metrics", plain(PAGE % (b"9", b"16") * 30_000)),
    "metrics of one line": ("/metrics", plain(b"vllm:cache_config_info{" + b'"' * 3_000_000)),
    "metrics that break off": ("/metrics", bare(b"vllm:", b"Content-Length: 999")),
    "metrics with a redirect": ("/metrics", answer(b"", b"Location: /v1/models", status=b"302 Found")),
    "models that are none": ("/v1/models", plain(b"[" * 100_000)),
    "models of 3 MB": ("/v1/models", plain(b"x" * 3_000_000)),
    "9,000 models": ("/v1/models", plain(json.dumps({"data": [{"id": one} for one in range(9000)]}).encode())),
    "a queue in 3 MB": ("/metrics", plain(b"vllm:num_requests_waiting 0\n" * 100_000)),
    "models with a control character": ("/v1/models", answer(b"{}", b"X-A: \x01")),
}  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", PAGES)
async def test_nothing_a_backend_says_of_itself_ends_the_gateway(page: str, caplog: pytest.LogCaptureFixture) -> None:
    path, body = PAGES[page]
    hostile = Hostile(pages={path: body})
    caplog.set_level(logging.INFO, "server.gateway.probe")
    async with gateway(hostile) as gate, asyncio.timeout(SLOWEST):
        for _ in range(2):
            hostile.kind = b""  # it fails once, and is asked of itself again
            assert (await gate.ask())[0] == 502
            await serves_others(gate, hostile)
        assert 1 <= gate.worker.info.max_rows <= 64 and gate.worker.info.capacity_tokens >= 1
    assert tracebacks(caplog) == []
    said = [one.getMessage() for one in caplog.records if one.name == "server.gateway.probe"]
    assert max(map(len, said), default=0) < 1000 and sum("bytes; the rest" in one for one in said) <= 1


TARGETS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E%2e/admin", "/v1/.%2e/admin", "/v1/x/../../admin"),
            *("/v1/./chat/completions", "/v1/%2e/chat/completions", "/v1/x/%2e%2e/chat/completions"),
            *("/v1/chat%2Fcompletions", "/v1/chat%2fcompletions", "/v1/chat%5Ccompletions", "/v1/chat\\completions"),
            *("/v1//chat/completions", "/v1/chat//completions", "/v1/chat/completions/", "/v1/models/"),
            "/v1/chat/completions/.",
            *("/v1/chat;x=1/completions", "/v1/chat/completions;x", "/v1/chat%3Bx/completions", "/v1/;/models"),
            *("/v1/%252e%252e/admin", "/v1/chat%252Fcompletions", "/v1/%25", "/v1/%", "/v1/%zz", "/v1/%u002e"),
            *("/v1/x%00", "/v1/x%0d%0aX:1", "/v1/x%20y", "/v1/x%7f", "/v1/%ff", "/v1/%c0%ae%c0%ae/x", "/v1/%ef%bc%8e"),
            *("/v1/models/../admin", "/v1/models/a%2F..%2F..%2Fadmin", "/v1/models/a%2f%2fb", "/v1/models/%2e%2e"),
            *("http://evil/v1/../admin", "http://evil/v1/%2e%2e/admin", "/v1/models%2Fa", "/v1/x%3Fy", "/v1/x%23y"),
        ),
        400,
    ),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unknown/path", "/v1/chat", "http://evil/v1/unknown"), 404),
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
        found = {}
        for target, status in TARGETS.items():
            for method in ("POST", "DELETE") if status == 400 else ("POST",):
                found[target] = (await raw(gate, method, target))[0]
                assert found[target] == status or {found[target], status} <= {400, 404, 405}, (target, found[target])
        assert hostile.heads == []
        for target, sent in {
            "/v1/models?x=%2e%2e&y=a%2Fb": "/v1/models?x=%2e%2e&y=a%2Fb",
            "/v1/models/org%2Fname": "/v1/models/org/name",
            "/v1/models/org/%6eame": "/v1/models/org/name",
            "/v1/%65mbeddings?a=1?b": "/v1/embeddings?a=1?b",
            f"http://evil{CHAT}?a": f"{CHAT}?a",
            "/v1/%63hat/completions": CHAT,
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


@pytest.mark.parametrize(
    ("keys", "settings", "authorization"),
    [
        (("alice",), {}, None),
        (("alice",), {"backend_api_key": "theirs"}, "Bearer theirs"),
        (("alice",), {"pass_client_keys": True}, "Bearer alice"),
        ((), {}, "Bearer alice"),
        ((), {"backend_api_key": "theirs"}, "Bearer theirs"),
    ],
)
async def test_no_header_of_a_connection_and_no_key_reaches_a_backend(
    keys: tuple[str, ...], settings: dict[str, Any], authorization: str | None
) -> None:
    hostile = Hostile()
    async with gateway(hostile, keys=keys, **settings) as gate:
        lines = [*(f"{name}: {value}" for name, value in SENT.items()), "Connection: X-Hop", "X-Kept: yes"]
        for target in (CHAT, "/v1/embeddings"):
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
            for path in ("/v1/images/edits", "/v1/embeddings", "/v1/messages/count_tokens", "/v1/unknown"):
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


async def test_all_that_is_passed_on_counts_in_the_quota_of_its_key() -> None:
    hostile = Hostile()
    async with gateway(hostile, keys=("a",), requests_per_minute=6, pass_unknown=True) as gate:
        paths = (CHAT, "/v1/embeddings", "/v1/audio/speech", "/v1/unknown", "/v1/rerank", "/v1/files", "/v1/embeddings")
        statuses = [(await raw(gate, "POST", path, "Authorization: Bearer a"))[0] for path in paths]
        assert statuses == [200] * 6 + [429]
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
