"""The server's end of the process in which grammars are tried."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from typing import Any

import msgspec

from server.grammars.trial import BEGUN, Exceeded, Outcome, Starved, Trial, TrialsFailed
from server.process.worker_process import kill, spawn

log = logging.getLogger(__name__)

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
