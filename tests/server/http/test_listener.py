"""Connections over raw sockets: too many, too slow, unread, encrypted, and through a file."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web

from engine.messages import FinishReason, RowSpec, RowUpdate
from models.errors import UserError
from scheduler.stream import AT_ONCE
from server.config import FrontConfig
from server.http import listener
from server.http.front import Front, tls_context
from server.http.listener import Connection
from server.http.port import take_path
from server.process.life import listen
from server.settings import ConfigError
from tests.certificates import make_certificate
from tests.server.fakes import ANSWER, PlayedDispatcher, fake_service, played_dispatcher
from tests.server.gateway.backends import until
from tests.server.live import Live, chat_body, live_server, raw_post, text_of

CHAT = "/v1/chat/completions"
LIVE = b"GET /health/live HTTP/1.1\r\nHost: test\r\n\r\n"


async def test_a_connection_too_many_is_told_so_and_the_next_after_one_has_gone_is_served() -> None:
    async with live_server(front=Front(settings=FrontConfig(max_connections=2))) as live:
        async with live.connect() as (first, writer), live.connect():
            writer.write(LIVE)
            assert (await first.readline()).startswith(b"HTTP/1.1 200 ")
            async with live.connect() as (reader, _):
                head, _, body = (await reader.readuntil(b"}}")).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in head
                assert orjson.loads(body)["error"]["code"] == "too_many_connections"
        await live.chat()


async def test_half_a_header_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 0.1)
    async with live_server() as live:
        for sent in (b"", b"GET /health/live HTTP/1.1\r\nHo", LIVE + LIVE[:9]):
            async with live.connect() as (reader, writer):
                writer.write(sent)
                answer = await reader.read()
                assert answer.count(b"HTTP/1.1 200 ") == sent.count(LIVE)


async def test_of_many_that_leave_at_once_few_are_let_go_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 handlers that were cancelled in few turns kept the event loop for 230 ms."""
    loop, turns, leave = asyncio.get_running_loop(), Counter[int](), web.RequestHandler.connection_lost
    turn = 0

    def tick() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(tick)

    def note(self: web.RequestHandler, exc: BaseException | None) -> None:
        turns[turn] += 1
        leave(self, exc)

    monkeypatch.setattr(web.RequestHandler, "connection_lost", note)
    made = list[asyncio.BaseTransport]()
    monkeypatch.setattr(listener, "_bound_silence", lambda transport, seconds: made.append(transport))
    async with live_server() as live, AsyncExitStack() as stack:
        for _ in range(64):
            await stack.enter_async_context(live.connect())
        await until(lambda: len(made) == 64)
        tick()
        for transport in made:
            transport.close()
        await until(lambda: turns.total() == 64)
    assert max(turns.values()) <= AT_ONCE


def huge(request: RowSpec) -> Iterable[RowUpdate]:
    """An answer that no system's buffers hold."""
    yield RowUpdate(request.row_id, (65,), "A" * 30_000_000, finish_reason=FinishReason.STOP)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_nobody_reads_loses_its_connection(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, lose = asyncio.Event(), Connection.connection_lost

    def note(connection: Connection, exc: BaseException | None) -> None:
        lose(connection, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", note)
    settings = FrontConfig(send_timeout=0.2)
    async with live_server(front=Front(settings=settings)) as live:
        live.dispatcher.script = huge
        async with live.connect() as (_, writer):
            writer.write(raw_post(CHAT, chat_body(stream=stream)))
            await lost.wait()
            await until(lambda: live.dispatcher.table.requests_running == 0)


async def test_the_system_too_cuts_off_who_takes_nothing(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that fit into the system's buffers leave ours, so that nothing here would see their end."""
    seen, bound = list[int](), listener._bound_silence

    def look(transport: asyncio.BaseTransport, seconds: float) -> None:
        bound(transport, seconds)
        connection = transport.get_extra_info("socket")
        seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    monkeypatch.setattr(listener, "_bound_silence", look)
    await live.chat()
    assert seen == [30_000]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_with_a_certificate_the_server_speaks_https_only(certificate: tuple[Path, Path]) -> None:
    front = Front(tls=tls_context(*certificate))
    trust = ssl.create_default_context(cafile=certificate[0])
    async with live_server(front=front) as live:
        url = live.url.replace("http:", "https:") + CHAT
        async with live.session.post(url, json=chat_body(), ssl=trust) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == ANSWER
        with pytest.raises(aiohttp.ClientError):
            await live.post(CHAT, chat_body())


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 2)])
def test_files_that_make_no_certificate_are_told(certificate: tuple[Path, Path], order: tuple[int, int]) -> None:
    files = (*certificate, Path("absent.pem"))
    with pytest.raises(ConfigError, match="give PEM files"):
        tls_context(files[order[0]], files[order[1]])


def test_a_key_with_a_password_is_refused_without_asking(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    command = ["openssl", "ec", "-in", str(certificate[1]), "-out", str(locked), "-aes128", "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="without a password"):
        tls_context(certificate[0], locked)


async def test_a_unix_socket_serves_from_when_it_listens_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    async with played_dispatcher() as dispatcher:
        with take_path(path) as taken:
            assert not path.exists()
            service, connector = fake_service(dispatcher), aiohttp.UnixConnector(str(path))
            front, session = Front(settings=FrontConfig(uds=path)), aiohttp.ClientSession(connector=connector)
            async with listen(service, taken, front) as app, session:
                with pytest.raises(UserError, match="already in use"), take_path(path):
                    pass
                assert text_of(await Live(0, service, dispatcher, session, app).stream_chat()) == ANSWER
    assert list(tmp_path.iterdir()) == []


AS_ANOTHER = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
socket.socket(socket.AF_UNIX).connect(sys.argv[2])
"""


async def connects_as(user: int, path: Path) -> bool:
    """Whether a user of this number may connect to a socket."""
    command = [sys.executable, "-SIc", AS_ANOTHER, str(user), str(path)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 0 or b"PermissionError" in said, said
    return process.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try to connect as another user")
@pytest.mark.parametrize(("mode", "reached"), [(None, False), ("0660", False), ("0666", True)])
async def test_another_user_reaches_a_socket_whose_mode_lets_it_at_any_umask(mode: str | None, reached: bool) -> None:
    """Below the unit's UMask=0077 nginx could not connect to the socket that the documents name."""
    before = os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "server.sock")
            os.chmod(folder, 0o755)  # as systemd makes a RuntimeDirectory
            async with played_dispatcher() as dispatcher:
                with take_path(path) as taken:
                    front = Front(settings=FrontConfig(uds=path, uds_mode=mode))
                    async with listen(fake_service(dispatcher), taken, front):
                        assert await connects_as(65534, path) is reached
    finally:
        os.umask(before)


def test_a_socket_that_was_left_behind_is_replaced_and_what_is_none_is_left_alone(tmp_path: Path) -> None:
    path, precious = tmp_path / "server.sock", tmp_path / "precious"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with take_path(path):
        pass
    precious.write_text("data")
    absent, long = tmp_path / "absent" / "server.sock", tmp_path / ("x" * 200)
    for path, said in ((precious, "no socket"), (absent, "cannot be taken"), (long, "cannot be taken")):
        with pytest.raises(UserError, match=said), take_path(path):
            pass
    assert precious.read_text() == "data"


async def test_two_servers_that_load_at_once_do_not_take_each_others_socket(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    service = fake_service(PlayedDispatcher())
    with take_path(path) as taken, socket.socket(socket.AF_UNIX) as late:
        late.bind(str(tmp_path / "late"))
        async with listen(service, taken, Front(settings=FrontConfig(uds=path))):
            with pytest.raises(UserError, match="already in use"):
                async with listen(service, late, Front(settings=FrontConfig(uds=path))):
                    pass
            assert path.exists()
