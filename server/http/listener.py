"""Bounds connections, idle times and unread data, all unlimited in aiohttp, and words its plain-text errors as the
API's.
"""

import asyncio
import logging
import socket
from ssl import SSLContext
from typing import cast

from aiohttp import http_exceptions, http_parser, web

from models.errors import UserError
from models.open_files import allow_open_files
from scheduler.stream import Wakeups
from server.api.errors import ApiError, error_body, error_response
from server.api.output.reply import encode
from server.front_settings import Listening
from server.request_id import HEADER, request_id

log = logging.getLogger(__name__)

IDLE_TIMEOUT = 30.0  # seconds until a request's whole header
LINGER = 2.0  # seconds that a refused request is still read, so that its sender sees the refusal
HANDSHAKE_TIMEOUT = 10.0
BACKLOG = 1024  # accept queue

OWN_FILES = 256  # other than connections


def require_c_parser() -> None:
    """Raises UserError for aiohttp's Python parser, lax about malformed requests."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        remedy = "unset AIOHTTP_NO_EXTENSIONS, and install a binary wheel of aiohttp"
        raise UserError(f"aiohttp runs without its C parser, which is not safe: {remedy}")


def raise_file_limit(connections: int) -> None:
    """One a connection."""
    if (allowed := allow_open_files(connections + OWN_FILES)) < connections + OWN_FILES:
        line = "only %d files may be open at a time: fewer than --max-connections %d may connect; raise LimitNOFILE"
        log.warning(line, allowed, connections)


class Connection(web.RequestHandler):
    __slots__ = ("_listener", "_send_timeout", "_stalled")

    def __init__(self, server: web.Server, listener: "Listener", send_timeout: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIMEOUT,
            lingering_time=LINGER,
            access_log=None,  # type: ignore[arg-type]  # which is how to have none
            # aiohttp would unpack on the loop, even refused bodies (see server/api/input/body.py)
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
        turn = asyncio.get_running_loop().create_future()
        turn.add_done_callback(lambda _: super(Connection, self).connection_lost(exc))
        self._listener.leaving.add(lambda: turn)  # thousands may leave at once, and wake their handlers

    def pause_writing(self) -> None:
        """Time out a client that does not read."""
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
        """Mostly bytes that are not HTTP."""
        super().handle_error(request, status, exc, message)  # logs; raises after an answer's begin
        text = "this is no valid HTTP request" if status == 400 else "the request could not be served"
        if isinstance(exc, http_exceptions.LineTooLong) or "Too many headers" in str(exc):
            text = "the request's head is too long: it may have 128 headers, and 8190 bytes in each and in the path"
        return error_response(ApiError(status, text, close=True), {"Server": "Lengthwise", HEADER: request_id(request)})


def _bound_silence(transport: asyncio.BaseTransport, seconds: float) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class HeaderOverflow(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        error = ApiError(503, "too many connections (--max-connections)", code="too_many_connections")
        body = encode(error_body(error))
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nServer: Lengthwise\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        connection.write(head.encode() + body)
        # Closing with unread data would reset the connection before the error is read.
        asyncio.get_running_loop().call_later(LINGER, connection.abort)


class Listener(web.BaseSite):
    """Bound, and listening after `start`."""

    def __init__(self, runner: web.AppRunner, sock: socket.socket, settings: Listening, tls: SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._socket = sock
        self._settings = settings
        self.connections = 0
        self.leaving = Wakeups()

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
            return HeaderOverflow()
        return Connection(server, self, self._settings.send_timeout)
