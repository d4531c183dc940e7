"""Rules that hold at every endpoint: paths, methods, limits, ids, headers, health."""

import asyncio
import gzip
import logging
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import orjson
import pytest
from aiohttp import http_parser

from models.errors import UserError
from scheduler.stream import AT_ONCE
from server.config import ServeConfig
from server.http.listener import require_c_parser
from server.http.service import FilesPlace
from server.observe.logs import quiet_broken_requests
from server.version import VERSION
from tests.server.live import CHAT, Live, chat_body, live_server, raw_post


@pytest.fixture
def limits() -> ServeConfig:
    return ServeConfig(max_body_bytes=10_000)


MEANT = {
    CHAT: (
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completion",
        "/v1/chat/completions/x",
        "/api/chat",
    ),
    "/v1/messages": ("/v1/v1/v1/messages/",),
    "/v1/completions": ("/api/generate", "/completion"),
    "/v1/models": ("/models",),
}
PATHS = [(path, f"did you mean {meant}?") for meant, paths in MEANT.items() for path in paths]
PATHS += [(path, "GET / lists the endpoints") for path in ("/nothing", "/v1/nothing%0Ahere", "/v1" * 60)]


@pytest.mark.parametrize(("path", "there"), PATHS)
async def test_an_unknown_path_is_told_where_the_thing_is(live: Live, path: str, there: str) -> None:
    error = await live.refused(path, {}, 404, code="not_found")
    assert error["type"] == "NotFoundError" and error["message"] == f"there is nothing at {path!r}; {there}"


async def test_a_wrong_method_is_405_and_names_the_right_one(live: Live) -> None:
    for method, path, right in (
        ("DELETE", "/v1/models/fake", "GET,HEAD"),
        *(("POST", f"/v1/{path}", "GET,HEAD") for path in ("models", "models/load")),
        *(("POST", f"/v1/{path}", None) for path in ("files/x", "requests/prune", "responses/compact")),
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
    ):
        reply = await live.ask(method, path)
        assert reply.status == 405 and right in (None, reply.headers["Allow"])
        assert method == "HEAD" or reply.json["error"]["code"] == "method_not_allowed"


async def _chunks() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b" " * 1000


BOMB = gzip.compress(b" " * 10_000_000)


async def test_a_body_over_the_limit_is_413(live: Live) -> None:
    assert len(BOMB) < 10_000
    for body, headers in ((b" " * 20_000, {}), (_chunks(), {}), (BOMB, {"content_encoding": "gzip"})):
        error = await live.refused(CHAT, body, 413, code="body_too_large", said="10000 bytes", **headers)
        assert error["type"] == "PayloadTooLargeError"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_body_is_unpacked(live: Live, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    await live.obtain(CHAT, pack(orjson.dumps(chat_body())), content_encoding=encoding)


async def test_an_unread_encoding_is_415_and_a_broken_one_400(tmp_path: Path) -> None:
    async with live_server(files=FilesPlace(tmp_path, 10_000)) as live:
        for path in (CHAT, "/v1/files"):
            await live.refused(path, b"this is no gzip", 415, code="unsupported_encoding", content_encoding="br")
        await live.refused(CHAT, b"this is no gzip", 400, code="invalid_request", content_encoding="gzip")


async def test_all_else_runs_between_calls_that_come_in_one_instant(live: Live) -> None:
    """A thousand were read, encoded and queued before anything else ran, which held the loop for 0.17 s."""
    calls, request = 100, raw_post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    with ExitStack() as connections:
        for _ in range(calls):
            connections.enter_context(socket.create_connection(("127.0.0.1", live.port))).sendall(request)
        counts = [0]
        while counts[-1] < calls:
            await asyncio.sleep(0)
            counts.append(len(live.dispatcher.submitted))
    assert max(after - before for before, after in pairwise(counts)) <= AT_ONCE


async def test_a_body_that_never_ends_is_408_and_its_connection_ends() -> None:
    async with live_server(body_timeout=0.2) as live, live.connect() as (reader, writer):
        writer.write(b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{" % CHAT.encode())
        answer = await reader.readuntil(b"}}")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"Connection: close" in answer
        error = orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["type"], error["code"]) == ("RequestTimeoutError", "request_timeout")
        assert await reader.read() == b""


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n"
BODY = b"Content-Length: 2\r\n\r\n{}"


TOO_LONG = b"it may have 128 headers, and 8190 bytes"
UNREAD: dict[str, tuple[bytes, bytes]] = {
    # what: (sent, part of what is told)
    "a long path": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: test\r\n\r\n", TOO_LONG),
    "a path just too long": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: test\r\n\r\n", TOO_LONG),
    "a long header": (HEAD + b"A: " + b"b" * 70_000 + b"\r\n\r\n", TOO_LONG),
    "many headers": (HEAD + b"A: b\r\n" * 200 + b"\r\n", TOO_LONG),
    "a header just too long": (HEAD + b"A: " + b"b" * 9000 + b"\r\n\r\n", TOO_LONG),
    "no HTTP": (b"\x16\x03\x01 nonsense\r\n\r\n", b""),
    # what two servers might read differently
    "a length and chunks": (HEAD + b"Transfer-Encoding: chunked\r\n" + BODY, b""),
    "two lengths": (HEAD + b"Content-Length: 3\r\n" + BODY, b""),
    "a signed length": (HEAD + b"Content-Length: +2\r\n\r\n{}", b""),
    "an unknown coding": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b""),
    "a blank behind a name": (HEAD + b"Content-Length : 2\r\n\r\n{}", b""),
    "a folded header": (HEAD + b"A: b\r\n c\r\n" + BODY, b""),
    "a zero byte": (HEAD + b"A: \0\r\n" + BODY, b""),
}


@pytest.mark.parametrize("case", UNREAD)
async def test_what_is_no_request_ends_its_connection(live: Live, caplog: pytest.LogCaptureFixture, case: str) -> None:
    """What was too long was said to be no valid HTTP request."""
    sent, told = UNREAD[case]
    caplog.handler.addFilter(quiet_broken_requests)
    head, body = await live.exchange(sent)
    assert head.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")) and b"\r\nServer: Lengthwise" in head
    error = orjson.loads(body)["error"]
    assert error["type"] == "BadRequestError" and told.decode() in error["message"]
    assert live.dispatcher.submitted == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_expectation_that_is_not_met_is_417(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """One that is no text was 500, with a traceback in the log."""
    for expected in (b"\xff", b"magic"):
        head, body = await live.exchange(HEAD + b"Expect: " + expected + b"\r\n" + BODY)
        assert head.startswith(b"HTTP/1.1 417 ") and b"\r\nServer: Lengthwise" in head
        assert orjson.loads(body)["error"]["type"] == "ExpectationFailedError"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_that_waits_to_be_told_is_told_to_go_on(live: Live) -> None:
    async with live.connect() as (reader, writer):
        writer.write(HEAD + b"Expect: 100-Continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


def test_a_server_without_the_c_parser_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(UserError, match="AIOHTTP_NO_EXTENSIONS"):
        require_c_parser()


@pytest.mark.parametrize(("sent", "returned"), [("abc-123", "abc-123"), ("x" * 500, "x" * 128), ("a b\tc\xe9", "abc")])
async def test_a_request_id_comes_back_as_far_as_it_can_be_printed(live: Live, sent: str, returned: str) -> None:
    head, _ = await live.exchange(HEAD + b"Connection: close\r\nx-request-id: %b\r\n" % sent.encode() + BODY)
    assert f"x-request-id: {returned}" in head.decode().split("\r\n")


async def test_every_response_has_a_request_id_and_our_name(live: Live) -> None:
    replies = [await live.get(path) for path in ("/", "/nothing", "/v1/models", "/health/live")]
    replies.append(await live.ask("POST", CHAT, chat_body(stream=True)))
    assert {reply.headers["Server"] for reply in replies} == {"Lengthwise"}
    assert len({reply.headers["x-request-id"] for reply in replies}) == 5


async def test_an_unforeseen_failure_is_500_and_told_in_the_log(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    vars(live.dispatcher)["submit_all"] = Mock(side_effect=RuntimeError("secret at 0x7f00"))
    error = await live.refused(CHAT, chat_body(), 500, code="internal_error")
    assert error["type"] == "InternalServerError"
    assert "secret" not in error["message"] and "secret at 0x7f00" in caplog.text


async def test_models_are_listed_and_found_under_each_name(live: Live) -> None:
    listed = (await live.get("/v1/models")).json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake", "org/alias"]
    for card in listed["data"]:
        assert (card["object"], card["owned_by"], card["root"]) == ("model", "lengthwise", "somewhere/fake")
        assert card["max_model_len"] == 256
        assert (await live.get(f"/v1/models/{card['id']}")).json == card
    other = await live.get("/v1/models/other")
    assert (other.status, other.json["error"]["code"]) == (404, "model_not_found")


async def test_the_front_page_names_the_endpoints(live: Live) -> None:
    page = (await live.get("/")).json
    assert (page["name"], page["version"], page["model"]) == ("Lengthwise", VERSION, "fake")
    assert "POST /v1/chat/completions" in page["endpoints"]


async def test_a_server_without_executors_is_alive_but_not_ready(live: Live) -> None:
    for alive, status in ((True, 200), (False, 503)):
        live.dispatcher.executor.alive = alive
        for path, expected in (("/health/live", 200), ("/health/ready", status), ("/health", status)):
            reply = await live.get(path)
            assert (reply.status, "error" in reply.json) == (expected, expected == 503)


async def test_head_answers_where_get_does_without_a_body(live: Live) -> None:
    for path in ("/", "/chat", "/health/live", "/health/ready", "/v1/models", "/metrics", "/dashboard/events"):
        async with live.session.get(live.url + path) as wanted, live.session.head(live.url + path) as response:
            assert (response.status, await response.read()) == (wanted.status, b""), path


async def test_requests_are_logged_in_one_line_each(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "server.http.service"):
        await live.get("/v1/models/a%0D%0Ab")
        await asyncio.sleep(0)
    lines = [record.getMessage() for record in caplog.records if record.name == "server.http.service"]
    assert len(lines) == 1
    assert lines[0].startswith("GET /v1/models/a%0D%0Ab 404 ")
