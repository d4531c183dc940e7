"""How a further process of the program is started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

KILL_TIMEOUT = 5.0
"""Seconds that a process has to be gone once it is killed."""


_ENVIRONMENT = threading.Lock()
"""Held while the environment, which all threads share, is changed."""


def kill(process: BaseProcess) -> None:
    """End a process, also one that is stopped and would not hear that it shall end."""
    process.kill()
    process.join(KILL_TIMEOUT)


def spawn(work: Callable[..., object], *arguments: object) -> tuple[BaseProcess, Connection[Any, Any]]:
    """Run `work(connection, *arguments)` in a new process; both ends notice when the other is gone."""
    context = multiprocessing.get_context("spawn")  # forking a process with threads is not safe
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), name=work.__name__, daemon=True)
    # Ctrl-C reaches the whole group, and a process that has yet to be set up would complain of it at length.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _ENVIRONMENT, _no_working_directory(os.environ):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return process, ours


@contextmanager
def _no_working_directory(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Processes that are started meanwhile take no module from where the user happens to be, as `python -P`."""
    before = environ.get("PYTHONSAFEPATH")
    environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            environ.pop("PYTHONSAFEPATH", None)
        else:
            environ["PYTHONSAFEPATH"] = before
