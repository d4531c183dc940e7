"""Compiles clients' grammars off the event loop, after a trial in a forked process: some take seconds, gigabytes, or
crash. Slow ones are retried, one at a time, on idle cores if possible.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import msgspec

from engine.sampling.grammar import Compiled, GrammarError, Grammars
from engine.sampling.params import Grammar
from models.recent import Recent
from server.worker_process import kill, spawn

log = logging.getLogger(__name__)

MEMORY = 64 * 2**20  # bytes of a trial

STACK = 4 * 2**20  # bytes; half of the server's threads' stack, so that these survive what a trial did

NICENESS = 10  # of compilation: executors wait for cores; more would starve it

BEGUN = b"!"  # ready for a grammar


class Exceeded(Exception):
    """A trial hit its bounds."""


class Starved(Exception):
    """A trial in idle time ran out of it."""


class TrialsFailed(RuntimeError):
    """No process is left; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Trial:
    compiled: Grammar
    seconds: float  # CPU seconds
    spare: float | None = None  # wall seconds, on idle cores


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a trial that ended by itself."""

    bytes: int = 0  # of memory
    error: str | None = None


def run_trials(connection: Connection[Any, Any], vocabulary: str, width: int, end_token_ids: tuple[int, ...]) -> None:
    """One a socket received over the connection, until the server is gone."""
    os.setpgid(0, 0)  # killed with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # not waited for
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammars = Grammars(lambda: vocabulary, width, end_token_ids)
    grammars.prepare()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the compiler's last words
    gc.freeze()
    with suppress(EOFError, OSError):
        while True:
            handle = recv_handle(connection)
            if os.fork() == 0:
                connection.close()
                _run_trial(socket.socket(fileno=handle), grammars)
            os.close(handle)


def _run_trial(connection: socket.socket, grammars: Grammars) -> None:
    try:
        with connection, connection.makefile("rb") as received:
            connection.sendall(BEGUN)
            trial = msgspec.msgpack.decode(received.read(), type=Trial)
            _bound(trial)
            connection.sendall(msgspec.msgpack.encode(try_grammars(trial, grammars)))
    finally:
        os._exit(0)


def _bound(trial: Trial) -> None:
    os.nice(NICENESS)
    if trial.spare is not None:
        with suppress(OSError):  # some sandboxes forbid it
            # Yields at once to waking threads, unlike niceness.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        signal.setitimer(signal.ITIMER_REAL, trial.spare)
    signal.setitimer(signal.ITIMER_PROF, trial.seconds)  # both timers' signals kill
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
    size, _ = _memory()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


def try_grammars(trial: Trial, grammars: Grammars) -> Outcome:
    _, before = _memory()
    try:
        grammars.compile(trial.compiled)
    except GrammarError as error:
        return Outcome(error=str(error))
    _, after = _memory()
    return Outcome(max(0, after - before))


def _memory() -> tuple[int, int]:
    with open("/proc/self/statm") as statm:
        pages = statm.read().split()
    return int(pages[0]) * resource.getpagesize(), int(pages[5]) * resource.getpagesize()


QUICK, PATIENT = 0.15, 1.0  # CPU seconds of first and second trial

SPARE = 4.0  # wall seconds for a CPU second on idle cores

QUICK_TRIALS = 4  # concurrent first trials

REMEMBERED = 4096  # outcomes


class RefusedGrammar(GrammarError):
    """Whoever tries."""


class GrammarCompiler:
    """Event loop only."""

    def __init__(self, grammars: Grammars, tester: TrialProcess) -> None:
        self.grammars = grammars
        self._tester = tester
        self._lock = threading.Lock()
        self._outcomes = Recent[bytes, Outcome | None](REMEMBERED)  # None: exceeded
        give_way = partial(os.nice, NICENESS)  # niceness is by thread
        self._pools = (
            (QUICK, ThreadPoolExecutor(QUICK_TRIALS, "grammars", give_way)),
            (PATIENT, ThreadPoolExecutor(1, "large grammars", give_way)),
        )

    async def compile(self, grammar: Grammar) -> Compiled:
        """Raises RefusedGrammar, GrammarsFull and TrialsFailed."""
        run = asyncio.get_running_loop().run_in_executor
        for seconds, pool in self._pools:
            with suppress(Exceeded):
                return await run(pool, self._compile, Trial(grammar, seconds))
        limit = f"{PATIENT:g} s or {MEMORY // 2**20} MiB"
        raise RefusedGrammar(f"takes more than {limit} to be compiled; make it smaller or simpler")

    def give_up(self) -> None:
        """Fail pending and later calls at shutdown."""
        self._tester.close()

    def close(self) -> None:
        """Waits for the threads."""
        self.give_up()
        for _, pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _compile(self, trial: Trial) -> Compiled:
        """After a trial, maybe an earlier one."""
        key = hashlib.sha256(msgspec.msgpack.encode(trial)).digest()
        with self._lock:
            known, outcome = key in self._outcomes, self._outcomes.get(key)
        if not known:
            with suppress(Exceeded):
                outcome = self._run(trial)
        with self._lock:
            self._outcomes[key] = outcome
        if outcome is None:
            raise Exceeded
        if outcome.error is not None:
            raise RefusedGrammar(outcome.error)
        return self.grammars.compile(trial.compiled, outcome.bytes)

    def _run(self, trial: Trial) -> Outcome:
        """On idle cores, else with its share."""
        with suppress(Starved):
            return self._tester.run(replace(trial, spare=SPARE * trial.seconds))
        return self._tester.run(trial)


ATTEMPTS = 2  # starts of a trial

TIMEOUT = 20.0  # seconds

START_TIMEOUT = 120.0  # seconds; one on an idle machine


@dataclass(slots=True, eq=False)
class _Running:
    process: BaseProcess
    connection: Connection[Any, Any]
    pid: int
    started: bool = False  # a trial
    ended: bool = False  # by a caller


class TrialProcess:
    """Starts on demand. Thread-safe."""

    def __init__(self, work: Callable[..., object], *arguments: object, timeout: float = TIMEOUT) -> None:
        """Runs `work(connection, *arguments)`."""
        self._work, self._arguments = work, arguments
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    def run(self, trial: Trial) -> Outcome:
        """Raises Exceeded, Starved and TrialsFailed."""
        packed = msgspec.msgpack.encode(trial)
        for _ in range(ATTEMPTS):
            running, begin = self.start(), time.monotonic()
            try:
                reply = self._ask(running, packed)
            except OSError:  # including time-outs
                self._kill(running)
                continue
            if reply:
                return msgspec.msgpack.decode(reply, type=Outcome)
            if self._lives(running):
                late = trial.spare is not None and time.monotonic() - begin >= trial.spare
                raise Starved if late else Exceeded
        log.error("grammars cannot be tried: their process ends or stands still")
        raise TrialsFailed("grammars cannot be compiled at present; try again later")

    def close(self) -> None:
        self._closed = True
        if (running := self._running) is not None:
            self._kill(running)

    def start(self) -> _Running:
        """Unless it runs; without waiting."""
        with self._lock:
            if self._closed:
                raise TrialsFailed("the server is shutting down")
            if self._running is None or not self._running.process.is_alive():
                process, connection = spawn(self._work, *self._arguments)
                assert process.pid is not None, "it has been started"
                self._running = _Running(process, connection, process.pid)
            return self._running

    def _ask(self, running: _Running, packed: bytes) -> bytes:
        """Empty without an answer."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                send_handle(running.connection, theirs.fileno(), running.pid)
            ours.settimeout(self._timeout if running.started else START_TIMEOUT)
            with ours.makefile("rb") as received:
                if received.read(1) != BEGUN:
                    raise BrokenPipeError("the process has begun no trial")
                running.started = True
                ours.settimeout(self._timeout)
                ours.sendall(packed)
                ours.shutdown(socket.SHUT_WR)
                return received.read()

    def _lives(self, running: _Running) -> bool:
        with self._lock:
            return self._running is running and running.process.is_alive()

    def _kill(self, running: _Running) -> None:
        with self._lock:
            if self._running is running:
                self._running = None
            if running.ended:
                return
            running.ended = True
            running.connection.close()
        with suppress(ProcessLookupError):  # not yet a group's leader
            os.killpg(running.pid, signal.SIGKILL)
        kill(running.process)
        if running.process.exitcode is not None:  # otherwise unkillable
            running.process.close()  # now, since a traceback may reference it
