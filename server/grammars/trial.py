"""The process in which clients' grammars are compiled for the first time, since some take seconds, gigabytes, or the
whole process down.

It forks for each trial, which leaves nothing behind, however it ends, and finds the vocabulary read. It has one thread,
so that forking is safe.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import msgspec

from engine.sampling.grammar import GrammarError, Grammars
from engine.sampling.params import Grammar

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
    """Grammars to try: some that are only checked, each by itself, and one that is compiled."""

    checked: tuple[Grammar, ...]
    compiled: Grammar | None
    seconds: float
    """Seconds of a processor that they may take."""
    spare: float | None = None
    """Seconds in which they have to be done, with what nothing else wants of the processors."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a trial that ended by itself."""

    bytes: int = 0
    """Bytes of memory that it took."""
    error: str | None = None
    place: int | None = None
    """Which of the checked grammars the error is about; None: the compiled one."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer that has been written down."""

    written: str

    def to_json(self) -> str:
        return self.written


def run_trials(connection: Connection[Any, Any], vocabulary: str, width: int, end_token_ids: tuple[int, ...]) -> None:
    """Run trials, each from a socket of its own that comes over the connection, until the server is gone."""
    os.setpgid(0, 0)  # so that trials can be killed with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammars = Grammars(Vocabulary(vocabulary), width, end_token_ids)
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
    for place, grammar in enumerate(trial.checked):
        try:
            grammars.check(grammar)
        except GrammarError as error:
            return Outcome(error=str(error), place=place)
    try:
        if trial.compiled is not None:
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
