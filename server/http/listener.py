"""Connections: how many there may be, how long one may idle or leave what it is sent unread, and errors as the API has
them where aiohttp would speak plain text.

What aiohttp leaves open by default is closed here: an idle connection lives for an hour, half a header or an unread
answer for ever, and connections are not counted.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from ssl import SSLContext
from typing import cast

from aiohttp import http_parser, web

from models.errors import UserError
from server.api.errors import ApiError, error_body, error_response
from server.api.output.reply import encode
from server.cli.config import Listening
from server.http.request_id import HEADER, request_id

log = logging.getLogger(__name__)

IDLE_TIMEOUT = 30.0
"""Seconds from one request to the whole header of the next; for the first, from the connection's beginning."""
LINGER = 2.0
"""Seconds for which the rest of a refused request is read, so that its sender gets to see the refusal."""
HANDSHAKE_TIMEOUT = 10.0
BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""

OWN_FILES = 256
"""Files that are no connections: weights, libraries, the journal, devices."""


def require_c_parser() -> None:
    """Raise UserError for aiohttp's Python parser, which took malformed requests apart unlike proxies do."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise UserError(
            "aiohttp runs without its C parser, which is not safe: unset AIOHTTP_NO_EXTENSIONS, "
            "and install a binary wheel of aiohttp"
        )


def raise_file_limit(connections: int) -> None:
    """Let each connection have its file; shells allow 1024 by default, and more may be asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "only %d files may be open at a time: fewer than --max-connections %d may connect; raise LimitNOFILE",
            allowed,
            connections,
        )


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_listener", "_send_timeout", "_stalled")

    def __init__(self, server: web.Server, listener: Listener, send_timeout: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIMEOUT,
            lingering_time=LINGER,
            access_log=None,  # type: ignore[arg-type]  # which is how to have none
            # aiohttp would unpack on the loop, also the rest of a refused body (server/api/input/body.py unpacks).
            auto_decompress=False,
        )
        self._listener = listener
        self._send_timeout = send_timeout
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._listener.connections += 1
        _bound_silence(transport, self._send_timeout)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.connections -= 1
        self._let_go()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the client, whose unread bytes fill the system's buffers and ours, a while to read on."""
        if self.transport is not None:
            self._stalled = asyncio.get_running_loop().call_later(self._send_timeout, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._let_go()
        super().resume_writing()

    def _let_go(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what no handler got to see: above all bytes that are no HTTP."""
        super().handle_error(request, status, exc, message)  # logs it; raises where an answer has begun
        text = "this is no valid HTTP request" if status == 400 else "the request could not be served"
        return error_response(ApiError(status, text, close=True), {"Server": "Lengthwise", HEADER: request_id(request)})


def _bound_silence(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the system close a connection whose peer takes nothing, also when everything has been handed to it."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class Overflow(asyncio.Protocol):
    """A connection too many: told so, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        error = ApiError(503, "too many connections (--max-connections)", code="too_many_connections")
        body = encode(error_body(error))
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nServer: Lengthwise\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        connection.write(head.encode() + body)
        # Not closed at once: what it has sent would make the system take back what it was told.
        asyncio.get_running_loop().call_later(LINGER, connection.abort)


class Listener(web.BaseSite):
    """A socket that is bound, and from `start` on listens."""

    def __init__(
        self, runner: web.AppRunner, sock: socket.socket, settings: Listening, ssl_context: SSLContext | None = None
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=BACKLOG)
        self._socket = sock
        self._settings = settings
        self.connections = 0

    @property
    def name(self) -> str:
        return str(self._socket.getsockname())

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        listen = loop.create_unix_server if self._socket.family == socket.AF_UNIX else loop.create_server
        self._server = await listen(
            self._connect,
            sock=self._socket,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=None if self._ssl_context is None else HANDSHAKE_TIMEOUT,
        )

    def _connect(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it listens only while its runner is set up"
        if self.connections >= self._settings.max_connections:
            return Overflow()
        return Connection(server, self, self._settings.send_timeout)
