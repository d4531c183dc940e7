"""A serving process: take the port, load, listen, wait for a signal, drain, leave."""

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import uvloop
from aiohttp import web

from models.errors import UserError
from models.signals import exit_on
from scheduler.clock import WorkFailed, background
from scheduler.serving_time.bilinear import TYPICAL_TOKENS
from server.api.health import LIFE
from server.batches.batches import stop_batches
from server.config import FrontConfig
from server.http.front import FRONT, OPEN, Front, build_front, reload_on_hangup
from server.http.listener import Listener, raise_file_limit, require_c_parser
from server.http.port import address_of, explain, is_public, publish, taken, unpublish
from server.http.service import HostMachine, Service, build_app
from server.observe import logs
from server.process.loop_watchdog import watch_loop
from server.process.notify import Notifier, feed_watchdog
from server.process.setup import SIGNALS, Signals

log = logging.getLogger(__name__)

LAST_SECONDS = 2.0  # seconds from a second signal to the end

GOODBYE = 2.0  # seconds for handlers' last writes

# new objects before a collection: a step of 1,000 rows makes as many for a moment, and after Python's 700 they count as
# old: full scans took 0.1 s every hundred steps
COLLECT_AFTER = 10_000

# seconds a thread may hold the interpreter; with Python's 5 ms the event loop waits for executors
SWITCH_INTERVAL = 0.001

C = TypeVar("C", bound=FrontConfig)

Opener = Callable[[C], AbstractAsyncContextManager[Service]]  # loads a configuration's service

FAILED = 70  # EX_SOFTWARE: restart the process


def serve(config: C, fetch: Callable[[C], None], open_service: Opener[C]) -> int:
    """Until a signal; returns the exit code. Raises ConfigError."""
    logs.configure(config.log_level, config.log_format)
    if sys.stderr is not None:
        faulthandler.enable()  # a service manager's watchdog kills by SIGABRT, and the stacks are wanted
    notifier = Notifier(os.environ)
    raise_file_limit(config.max_connections)
    front = build_front(config, os.environ)
    require_c_parser()
    # first, lest a minute of loading end in "already in use"
    with exit_on(*SIGNALS), taken(config.host, config.port, config.uds) as port:
        if is_public(port) and not len(front.access.keys):
            log.warning("other machines can reach this server, and anyone there may use it: set --api-key-file")
        fetch(config)
        try:
            code = uvloop.run(_serve(config, port, open_service, front, notifier))
        except WorkFailed:
            code = FAILED
    if code == FAILED:
        _leave_at_once(code)
    return code


async def _serve(config: C, port: socket.socket, open_service: Opener[C], front: Front, notifier: Notifier) -> int:
    start = time.monotonic()
    with Signals(partial(_leave_loading, config), _end_soon) as signals:
        async with open_service(config) as service:
            signals.instead = None
            shorten_pauses()
            async with listen(service, port, front) as app:
                address = f"unix:{config.uds}" if config.uds else address_of(port, "https" if front.tls else "http")
                print(summarize(service, address, time.monotonic() - start), flush=True)
                notifier.ready(f"serving {service.name} on {address}")
                fed = background(feed_watchdog(notifier, lambda: service.dispatcher.accepts), "watchdog")
                reloads = reload_on_hangup(front, config, os.environ)
                async with fed, watch_loop(_end_standstill):
                    with reloads:
                        return await _until_end(app, service, signals, notifier)


def shorten_pauses() -> None:
    """Waits for the collector and for other threads."""
    gc.collect()
    gc.freeze()  # loaded objects need no scan
    gc.set_threshold(COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_INTERVAL)


async def _until_end(app: web.Application, service: Service, signals: Signals, notifier: Notifier) -> int:
    await _wait_for_any(signals.first.wait(), service.dispatcher.death())
    if not signals.first.is_set():
        log.critical("nothing is left that could serve a request: the process ends with code %d", FAILED)
        notifier.stopping("no executor is left")
        return FAILED
    app[LIFE].draining = True
    await stop_batches(app)
    notifier.stopping("draining")
    await drain(service, app[FRONT].settings.shutdown_timeout, signals.second)
    return 0


def _leave_loading(config: FrontConfig) -> None:
    if config.uds is not None:
        unpublish(config.uds)
    _leave_at_once(0)


def _end_standstill() -> None:
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)  # kills, should the log hang too
    if sys.stderr is not None:
        faulthandler.dump_traceback(all_threads=True)
    log.critical("the event loop stands still: the process ends with code %d", FAILED)
    _leave_at_once(FAILED)


def _end_soon() -> None:
    signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)  # kills, should a thread not release the interpreter
    timer = threading.Timer(LAST_SECONDS - 0.5, _leave_at_once, (0,))
    timer.daemon = True
    timer.start()


def _leave_at_once(code: int) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@asynccontextmanager
async def listen(service: Service, port: socket.socket, front: Front = OPEN) -> AsyncIterator[web.Application]:
    """On a bound socket; a Unix socket is published now. Raises UserError."""
    app, settings = build_app(service, front), front.settings
    # handlers are cancelled: a client that leaves frees its row at once, also while it waits
    runner = web.AppRunner(app, handle_signals=False, handler_cancellation=True, shutdown_timeout=GOODBYE)
    await runner.setup()
    try:
        try:
            await Listener(runner, port, settings, front.tls).start()
        except OSError as error:  # another process was faster
            if settings.uds is not None:
                raise UserError(f"--uds cannot be listened on: {error.strerror}") from None
            raise UserError(explain(error, *port.getsockname()[:2])) from None
        if settings.uds is not None:
            publish(settings.uds, settings.uds_mode)
        yield app
    finally:
        await runner.cleanup()


async def drain(service: Service, timeout: float, hurry: asyncio.Event) -> None:
    """Let requests end for `timeout` seconds or until hurried, then end them with an error."""
    waiting, running = service.dispatcher.table.requests_waiting, service.dispatcher.table.requests_running
    if waiting or running:
        line = "shutting down: %d requests have up to %g s to end; a second signal ends them"
        log.info(line, waiting + running, timeout)
    await _wait_for_any(service.dispatcher.drain(), hurry.wait(), timeout=timeout)
    service.dispatcher.abort_all("the server is shutting down")
    await service.dispatcher.drain()


async def _wait_for_any(*awaited: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
    """The first of these, or `timeout` seconds; cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def summarize(service: Service, address: str, seconds: float) -> str:
    """Scripts wait for the first line."""
    count, machine = len(service.dispatcher.workers), service.machine
    kind = "backend" if service.served_model is None else "executor"
    of = f"{count} {kind}{'s' * (count > 1)}"
    if failing := sum(not worker.serves for worker in service.dispatcher.workers):
        of += f", {failing} not answering"
    state = "ready" if service.dispatcher.alive else f"not ready until a {kind} answers: listens"
    lines = [f"Lengthwise {state} on {address} ({service.name}, {of}, {seconds:.1f} s)"]
    if machine is not None:
        infos = [worker.info for worker in service.dispatcher.workers]
        slots, tokens = sum(info.max_rows for info in infos), sum(info.capacity_tokens for info in infos)
        longest = service.model.context_length
        lines.append(f"  weights   {_weights(machine)}")
        lines.append(f"  room      {slots} slots, {tokens:,} tokens of KV cache; a request may take {longest:,}")
        lines.append(f"  speed     {_speed(machine, infos[0].max_rows)}")
        if (most := service.model.defaults.max_tokens) is not None and most < longest:
            lines.append(f"  answers   without max_tokens end after {most:,} tokens: --default-max-tokens changes that")
        if (most := service.model.defaults.sampling.max_new_tokens) is not None and most < longest:
            lines.append(f"  answers   all end after {most:,} tokens: max_new_tokens of the model's generation config")
    if address.startswith("http"):
        own = "" if address.endswith(":8000") else f" --url {address}"
        lines.append(f"  open {address} or run: lengthwise chat{own}")
    return "\n".join(lines)


def _weights(machine: HostMachine) -> str:
    conditions = machine.conditions
    kept = "" if conditions.quantization == "none" else f", kept as {conditions.quantization}"
    threads = f", {conditions.threads} thread{'s' * (conditions.threads > 1)}" if conditions.threads else ""
    return f"{conditions.dtype}{kept}, on {conditions.device}{threads}"


def _speed(machine: HostMachine, slots: int) -> str:
    """Decode tokens/s by learned prices, for one request and for all slots of an executor."""
    if machine.model is None:
        return "not known yet; it is learned from what is served"
    alone, full = (rows / machine.model.iteration(rows, TYPICAL_TOKENS) for rows in (1, slots))
    return f"about {alone:.0f} tokens/s for one request, {full:.0f} for {slots} together, as measured here"
