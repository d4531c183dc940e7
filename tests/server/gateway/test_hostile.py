"""Backends that mean ill, or are broken: none of them harms another call, and none leaves a traceback."""

import asyncio
import gzip
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

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
EARLY = {"stream_options": {"include_progress": True}}  # headers are sent before the backend answers

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
    "500,000 ids": (answer(b'data: {"id"\n\n' * 500_000 + EVENTS), PASSED),
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
        for fields in ({}, {"stream": False}, EARLY):
            hostile.kind, statuses = KINDS[kind]
            statuses |= {200} if fields is EARLY else set()
            began, status = time.perf_counter(), 0
            with suppress(Exception):  # an answer that breaks off
                status, _ = await gate.ask(**fields)
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
