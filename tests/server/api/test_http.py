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
from tests.server.live import Live, chat_body, live_server, raw_post

CHAT = "/v1/chat/completions"


@pytest.fixture
def limits() -> ServeConfig:
    return ServeConfig(max_body_bytes=10_000)


PATHS = [
    ("/chat/completions", "did you mean /v1/chat/completions?"),
    ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
    ("/v1/v1/v1/messages/", "did you mean /v1/messages?"),
    ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
    ("/api/chat", "did you mean /v1/chat/completions?"),
    ("/api/generate", "did you mean /v1/completions?"),
    ("/completion", "did you mean /v1/completions?"),
    ("/models", "did you mean /v1/models?"),
    ("/nothing", "GET / lists the endpoints"),
    ("/v1/nothing%0Ahere", "GET / lists the endpoints"),
    ("/v1" * 60, "GET / lists the endpoints"),
    ("/v1/chat/completions/x", "did you mean /v1/chat/completions?"),
]


@pytest.mark.parametrize(("path", "there"), PATHS)
async def test_an_unknown_path_is_told_where_the_thing_is(live: Live, path: str, there: str) -> None:
    status, reply = await live.post(path, {})
    error = reply["error"]
    assert (status, error["type"], error["code"]) == (404, "NotFoundError", "not_found")
    assert error["message"] == f"there is nothing at {path!r}; {there}"


async def test_a_wrong_method_is_405_and_names_the_right_one(live: Live) -> None:
    assert (await live.ask("DELETE", "/v1/models/fake")).headers["Allow"] == "GET,HEAD"
    for path in ("models", "models/load", "files/x", "requests/prune", "responses/compact"):
        assert (await live.post(f"/v1/{path}", {}))[0] == 405
    reply = await live.get(CHAT)
    assert (reply.status, reply.headers["Allow"], reply.json["error"]["code"]) == (405, "POST", "method_not_allowed")


async def _chunks() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b" " * 1000


BOMB = gzip.compress(b" " * 10_000_000)


@pytest.mark.parametrize(
    ("make", "headers"),
    [(lambda: b" " * 20_000, {}), (_chunks, {}), (lambda: BOMB, {"content_encoding": "gzip"})],
    ids=["whole", "in chunks", "unpacked"],
)
async def test_a_body_over_the_limit_is_413(live: Live, make: Callable[[], object], headers: dict[str, str]) -> None:
    assert len(BOMB) < 10_000
    status, reply = await live.post(CHAT, make(), **headers)
    assert (status, reply["error"]["type"], reply["error"]["code"]) == (413, "PayloadTooLargeError", "body_too_large")
    assert "10000 bytes" in reply["error"]["message"]


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_body_is_unpacked(live: Live, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    await live.obtain(CHAT, pack(orjson.dumps(chat_body())), content_encoding=encoding)


ENCODINGS = [
    *((path, "br", (415, "unsupported_encoding")) for path in (CHAT, "/v1/files")),
    (CHAT, "gzip", (400, "invalid_request")),
]


@pytest.mark.parametrize(("path", "encoding", "told"), ENCODINGS)
async def test_an_unread_encoding_is_415_and_a_broken_one_400(
    tmp_path: Path, path: str, encoding: str, told: tuple[int, str]
) -> None:
    async with live_server(files=FilesPlace(tmp_path, 10_000)) as live:
        status, reply = await live.post(path, b"this is no gzip", content_encoding=encoding)
        assert (status, reply["error"]["code"]) == told


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


LONG_HEADS = {"path": ("x" * 70_000, ""), "header": ("", f"a: {'b' * 70_000}\r\n"), "headers": ("", "a: b\r\n" * 200)}


@pytest.mark.parametrize(("path", "headers"), LONG_HEADS.values(), ids=LONG_HEADS)
async def test_a_head_that_is_too_long_is_told_the_bounds(live: Live, path: str, headers: str) -> None:
    """It was said to be no valid HTTP request."""
    async with live.connect() as (reader, writer):
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert "it may have 128 headers, and 8190 bytes" in orjson.loads(body)["error"]["message"]


async def test_bytes_that_are_not_http_are_refused_quietly(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(quiet_broken_requests)
    async with live.connect() as (reader, writer):
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 400 ") and b"\r\nServer: Lengthwise" in head
        assert orjson.loads(body)["error"]["type"] == "BadRequestError"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n"


@pytest.mark.parametrize("expected", [b"\xff", b"magic"])
async def test_an_expectation_that_is_not_met_is_417_in_the_form_of_all_errors(
    live: Live, caplog: pytest.LogCaptureFixture, expected: bytes
) -> None:
    """One that is no text was 500, with a traceback in the log."""
    async with live.connect() as (reader, writer):
        writer.write(HEAD + b"Expect: " + expected + b"\r\nContent-Length: 2\r\n\r\n{}")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417 ") and b"\r\nServer: Lengthwise" in head
    assert orjson.loads(body)["error"]["type"] == "ExpectationFailedError"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_that_waits_to_be_told_is_told_to_go_on(live: Live) -> None:
    async with live.connect() as (reader, writer):
        writer.write(HEAD + b"Expect: 100-Continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


AMBIGUOUS = [
    HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    HEAD + b"Content-Length: +2\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Content-Length : 2\r\n\r\n{}",
    HEAD + b"A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"A: \0\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"A: " + b"b" * 9000 + b"\r\n\r\n",
    HEAD + b"A: b\r\n" * 200 + b"\r\n",
    b"POST /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: test\r\n\r\n",
]


@pytest.mark.parametrize("sent", AMBIGUOUS)
async def test_requests_that_two_servers_might_read_differently_end_their_connection(live: Live, sent: bytes) -> None:
    async with live.connect() as (reader, writer):
        writer.write(sent)
        answer = await reader.read()
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), answer
    assert live.dispatcher.submitted == []


def test_a_server_without_the_c_parser_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(UserError, match="AIOHTTP_NO_EXTENSIONS"):
        require_c_parser()


@pytest.mark.parametrize(("sent", "returned"), [("abc-123", "abc-123"), ("x" * 500, "x" * 128), ("a b\tc\xe9", "abc")])
async def test_a_request_id_comes_back_as_far_as_it_can_be_printed(live: Live, sent: str, returned: str) -> None:
    async with live.connect() as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: test\r\nx-request-id: %b\r\n\r\n" % sent.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"x-request-id: {returned}\r\n".encode() in head


async def test_every_response_has_a_request_id_and_our_name(live: Live) -> None:
    replies = [await live.get(path) for path in ("/", "/nothing", "/v1/models", "/health/live")]
    replies.append(await live.ask("POST", CHAT, chat_body(stream=True)))
    assert {reply.headers["Server"] for reply in replies} == {"Lengthwise"}
    assert len({reply.headers["x-request-id"] for reply in replies}) == 5


async def test_an_unforeseen_failure_is_500_and_told_in_the_log(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret at 0x7f00")

    live.dispatcher.submit_all = refuse  # type: ignore[assignment,method-assign]
    status, reply = await live.post(CHAT, chat_body())
    assert status == 500
    assert (reply["error"]["type"], reply["error"]["code"]) == ("InternalServerError", "internal_error")
    assert "secret" not in reply["error"]["message"]
    assert "secret at 0x7f00" in caplog.text


async def test_models_are_listed_under_each_name(live: Live) -> None:
    listed = (await live.get("/v1/models")).json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake", "org/alias"]
    card = listed["data"][0]
    assert (card["object"], card["owned_by"], card["root"]) == ("model", "lengthwise", "somewhere/fake")
    assert card["max_model_len"] == 256


@pytest.mark.parametrize(("name", "status"), [("fake", 200), ("org/alias", 200), ("other", 404)])
async def test_a_model_is_found_by_its_name(live: Live, name: str, status: int) -> None:
    reply = await live.get(f"/v1/models/{name}")
    assert reply.status == status
    assert reply.json["id"] == name if status == 200 else reply.json["error"]["code"] == "model_not_found"


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
    assert (await live.ask("HEAD", CHAT)).status == 405


async def test_a_draining_dispatcher_makes_new_requests_503(live: Live) -> None:
    await live.dispatcher.drain()
    status, reply = await live.post(CHAT, chat_body())
    assert status == 503
    assert reply["error"]["type"] == "ServiceUnavailableError"


async def test_requests_are_logged_in_one_line_each(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "server.http.service"):
        await live.get("/v1/models/a%0D%0Ab")
        await asyncio.sleep(0)
    lines = [record.getMessage() for record in caplog.records if record.name == "server.http.service"]
    assert len(lines) == 1
    assert lines[0].startswith("GET /v1/models/a%0D%0Ab 404 ")
