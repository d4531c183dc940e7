"""Clients' grammars compiled off the event loop, once they have been tried in a process where they do no harm, since
some take seconds, gigabytes, or the whole process down.

Most take milliseconds. What takes longer is tried again with more time, one at a time, so that ordinary grammars need
not wait for it. Each is tried in time that nothing else wants, where there is enough of that, so that rows that run
need not wait either. The process has one thread and forks for each trial, which leaves nothing behind, however it ends,
and finds the vocabulary read.
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
from scheduler.recent import Recent
from server.process.worker_process import kill, spawn

log = logging.getLogger(__name__)

MEMORY = 64 * 2**20
"""Bytes that a trial may take."""

STACK = 4 * 2**20
"""Bytes of its stack; the server's threads have twice as much, so that they come through what it came through."""

NICENESS = 10
"""Niceness of all that compiles grammars, the server's threads included: beside others that compute on their cores,
executors wait for a core anew at each product. Nicer still, and little would be left to it on busy cores."""

BEGUN = b"!"
"""Message of a trial that it is ready to be sent a grammar."""


class Exceeded(Exception):
    """A trial has died of its bounds."""


class Starved(Exception):
    """A trial in spare time was not done in time, since there was little of it."""


class TrialsFailed(RuntimeError):
    """Raised where no process is left in which grammars could be tried; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A grammar to try."""

    compiled: Grammar
    seconds: float
    """Seconds of a processor that it may take."""
    spare: float | None = None
    """Seconds in which it has to be done, with what nothing else wants of the processors."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a trial that ended by itself."""

    bytes: int = 0
    """Bytes of memory that it took."""
    error: str | None = None


def run_trials(connection: Connection[Any, Any], vocabulary: str, width: int, end_token_ids: tuple[int, ...]) -> None:
    """Run trials, each from a socket of its own that comes over the connection, until the server is gone."""
    os.setpgid(0, 0)  # so that trials can be killed with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammars = Grammars(lambda: vocabulary, width, end_token_ids)
    grammars.prepare()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the compiler's last words would go
    gc.freeze()
    with suppress(EOFError, OSError):
        while True:
            handle = recv_handle(connection)
            if os.fork() == 0:
                connection.close()
                _run_trial(socket.socket(fileno=handle), grammars)
            os.close(handle)


def _run_trial(connection: socket.socket, grammars: Grammars) -> None:
    """Run one trial, and end this process."""
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
        with suppress(OSError):  # some sandboxes have no other policy than the ordinary one
            # Unlike a nice process, it makes way at once for a thread that wakes.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        signal.setitimer(signal.ITIMER_REAL, trial.spare)
    signal.setitimer(signal.ITIMER_PROF, trial.seconds)  # the signals of both timers kill
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
    size, _ = _memory()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


def try_grammars(trial: Trial, grammars: Grammars) -> Outcome:
    """Compile what is to be tried."""
    _, before = _memory()
    try:
        grammars.compile(trial.compiled)
    except GrammarError as error:
        return Outcome(error=str(error))
    _, after = _memory()
    return Outcome(max(0, after - before))


def _memory() -> tuple[int, int]:
    """Bytes of this process's address space, and of the data in it."""
    with open("/proc/self/statm") as statm:
        pages = statm.read().split()
    return int(pages[0]) * resource.getpagesize(), int(pages[5]) * resource.getpagesize()


QUICK, PATIENT = 0.15, 1.0
"""Seconds of a processor that a first trial may take, and a second."""

SPARE = 4.0
"""Seconds in which a trial must have had each second of a processor, while nothing else wants one."""

QUICK_TRIALS = 4
"""First trials that run at a time."""

REMEMBERED = 4096
"""Trials whose outcome is remembered."""


class RefusedGrammar(GrammarError):
    """A grammar that cannot be used, whoever tries."""


class GrammarCompiler:
    """Compiles a model's grammars. Event loop only."""

    def __init__(self, grammars: Grammars, tester: TrialProcess) -> None:
        self.grammars = grammars
        self._tester = tester
        self._lock = threading.Lock()
        self._outcomes = Recent[bytes, Outcome | None](REMEMBERED)  # None for those that were exceeded
        give_way = partial(os.nice, NICENESS)  # each thread has a niceness of its own
        self._pools = (
            (QUICK, ThreadPoolExecutor(QUICK_TRIALS, "grammars", give_way)),
            (PATIENT, ThreadPoolExecutor(1, "large grammars", give_way)),
        )

    async def compile(self, grammar: Grammar) -> Compiled:
        """Compile a grammar. Raises RefusedGrammar, GrammarsFull and TrialsFailed."""
        run = asyncio.get_running_loop().run_in_executor
        for seconds, pool in self._pools:
            with suppress(Exceeded):
                return await run(pool, self._compile, Trial(grammar, seconds))
        limit = f"{PATIENT:g} s or {MEMORY // 2**20} MiB"
        raise RefusedGrammar(f"takes more than {limit} to be compiled; make it smaller or simpler")

    def give_up(self) -> None:
        """Let calls whose grammars are under way be told that the server ends; those that come later too."""
        self._tester.close()

    def close(self) -> None:
        """Give up what is under way, and wait for the threads."""
        self.give_up()
        for _, pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _compile(self, trial: Trial) -> Compiled:
        """Compile what has passed a trial, which may have been made before. Raises Exceeded and RefusedGrammar."""
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
        """Run a trial in spare time, and with its share of the processors where it gets too little of that."""
        with suppress(Starved):
            return self._tester.run(replace(trial, spare=SPARE * trial.seconds))
        return self._tester.run(trial)


ATTEMPTS = 2
"""How often a trial is begun, where the process ends or stands still."""

TIMEOUT = 20.0
"""Seconds without an answer after which the process stands still."""

START_TIMEOUT = 120.0
"""Seconds that it has to start, which takes one on an idle machine."""


@dataclass(slots=True, eq=False)
class _Running:
    process: BaseProcess
    connection: Connection[Any, Any]
    pid: int
    started: bool = False
    """Whether it has begun a trial."""
    ended: bool = False
    """Whether a caller has ended it, or is about to."""


class TrialProcess:
    """Tries grammars in a process, which is started when there is none. For any thread."""

    def __init__(self, work: Callable[..., object], *arguments: object, timeout: float = TIMEOUT) -> None:
        """`work(connection, *arguments)` is what the process does."""
        self._work, self._arguments = work, arguments
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        self._ensure()

    def run(self, trial: Trial) -> Outcome:
        """Raises Exceeded where the trial has died of its bounds, Starved where it had too little time to come to them,
        and TrialsFailed where there is no process.
        """
        packed = msgspec.msgpack.encode(trial)
        for _ in range(ATTEMPTS):
            running, begin = self._ensure(), time.monotonic()
            try:
                reply = self._ask(running, packed)
            except OSError:  # a time-out is one too
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
        """End the process, and what is tried in it."""
        self._closed = True
        if (running := self._running) is not None:
            self._kill(running)

    def _ensure(self) -> _Running:
        with self._lock:
            if self._closed:
                raise TrialsFailed("the server is shutting down")
            if self._running is None or not self._running.process.is_alive():
                process, connection = spawn(self._work, *self._arguments)
                assert process.pid is not None, "it has been started"
                self._running = _Running(process, connection, process.pid)
            return self._running

    def _ask(self, running: _Running, packed: bytes) -> bytes:
        """The answer to a trial, which is empty where it has none. Raises OSError."""
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
        """End a process and its trials, whose callers begin anew, and close what leads to it."""
        with self._lock:
            if self._running is running:
                self._running = None
            if running.ended:
                return
            running.ended = True
            running.connection.close()
        with suppress(ProcessLookupError):  # it is no group's leader yet
            os.killpg(running.pid, signal.SIGKILL)
        kill(running.process)
        if running.process.exitcode is not None:  # else nothing can end it
            running.process.close()  # now, since the traceback of a call that failed may keep it for long
