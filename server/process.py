"""The life of a serving process: take the port, load, listen, wait for a signal, drain, leave.

It knows neither the model nor the endpoints; the composition root opens the service, routes.py the application.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeAlias

import uvloop
from aiohttp import web

from models.catalog import CatalogError
from models.loader import LoadError
from models.text import TextError
from scheduler.assembly import StrategyError
from scheduler.profile_store import ProfileError
from server import logs
from server.config import ServeConfig
from server.health import LIFE
from server.parser import ParserError, require_c_parser
from server.port import PortError, explain, take_port
from server.routes import build_app
from server.service import Service
from server.signals import SIGNALS, Signals

log = logging.getLogger(__name__)

IDLE_CONNECTION_TIMEOUT = 30.0
LINGER = 2.0
"""Seconds for which the rest of a refused request is read, so that its sender gets to see the refusal."""
GOODBYE = 2.0
"""Seconds for which handlers may still write after the last request has ended."""


Opener: TypeAlias = Callable[[ServeConfig], AbstractAsyncContextManager[Service]]
"""Loads what the configuration names, and lets it go on leaving."""


def serve(config: ServeConfig, fetch: Callable[[ServeConfig], None], open_service: Opener) -> int:
    """Serve until a signal comes; returns the process's exit code."""
    logs.configure(config.log_level)
    try:
        require_c_parser()
        # The port is taken first: a minute of fetching and loading should not end in "already in use".
        with take_port(config.host, config.port) as port:
            with _terminable():
                fetch(config)
            uvloop.run(_serve(config, port, open_service))
    except (CatalogError, LoadError, TextError, PortError, ParserError, ProfileError, StrategyError) as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _terminable() -> Iterator[None]:
    """Signals as exceptions, so that what is half fetched is cleaned up and pip does not outlive us.

    SIGINT too: a shell that starts a program in the background has it ignored, and Python then leaves it so.
    """

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(config: ServeConfig, port: socket.socket, open_service: Opener) -> None:
    start = time.monotonic()
    with Signals() as signals:
        signals.on_first(_leave_at_once)
        async with open_service(config) as service:
            signals.on_first(None)
            # What is loaded stays: the collector need not look through it again while every stream waits.
            gc.collect()
            gc.freeze()
            async with listening(service, port) as app:
                _announce(service, port, time.monotonic() - start)
                await signals.first.wait()
                app[LIFE].draining = True
                await drain(service, config.shutdown_timeout, signals.second)


def _leave_at_once() -> None:
    """While loading nothing is lost, and the thread that reads the weights cannot be interrupted otherwise."""
    sys.stderr.flush()
    os._exit(0)


@asynccontextmanager
async def listening(service: Service, port: socket.socket) -> AsyncIterator[web.Application]:
    """Answer requests on a socket that is bound."""
    app = build_app(service)
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,  # a client that leaves must free its row at once, also while it waits
        keepalive_timeout=IDLE_CONNECTION_TIMEOUT,
        lingering_time=LINGER,
        shutdown_timeout=GOODBYE,
    )
    await runner.setup()
    try:
        await _listen(runner, port)
        yield app
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: socket.socket) -> None:
    try:
        await web.SockSite(runner, port, backlog=1024).start()
    except OSError as error:  # another process that was loading too has been faster
        raise PortError(explain(error, *port.getsockname()[:2])) from None


def _announce(service: Service, port: socket.socket, seconds: float) -> None:
    """Tell the user where to go; scripts wait for this line."""
    host, number = port.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    executors = "1 executor" if service.executors == 1 else f"{service.executors} executors"
    print(
        f"Lengthwise ready on http://{address}:{number} ({service.model_id}, {executors}, {seconds:.1f} s)", flush=True
    )


async def drain(service: Service, timeout: float, hurry: asyncio.Event) -> None:
    """Let running requests end, for `timeout` seconds or until the user hurries; then end them with an error."""
    waiting, running = service.dispatcher.requests_waiting, service.dispatcher.requests_running
    if waiting or running:
        log.info(
            "shutting down: %d requests have up to %g s to end; a second signal ends them", waiting + running, timeout
        )
    finished = asyncio.ensure_future(service.dispatcher.drain())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({finished, hurried}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not finished.done():
        service.dispatcher.abort_all("the server is shutting down")
        await finished
