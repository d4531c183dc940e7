"""Threads: work in one of its own that is gone afterwards, and code of others that is ended after a time.

OpenMP counts the helper threads of each living thread that ever computed, and when they outnumber the cores it puts
waiting ones to sleep at once, which makes a decode step half as long again. So what computes once, such as loading a
model, must not do so in a thread that lives on beside those that serve or are measured.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run_in_own_thread(work: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Return what `work` returns, or raise what it raises, once its thread has ended.

    stop   set when the caller is interrupted, which then waits until the work has ended
    """
    with ThreadPoolExecutor(1, "own") as pool:
        future = pool.submit(work)
        try:
            wait([future])
        except BaseException:
            if stop is not None:
                stop.set()
            raise  # once the thread has ended, as the pool has it
        return future.result()


class _Overdue(BaseException):
    """Raised in a thread whose time is up; no `except Exception` of the code that runs there holds it up."""


class Deadline:
    """Ends what any thread does inside `limit` once it has taken `seconds`; a call into C ends first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[int, float] = {}  # when each thread's time is up
        self._watched = False  # whether a thread looks at them, which it does while there are any
        self._lock = threading.Lock()

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Raise TimeoutError here should the block take too long."""
        me = threading.get_ident()
        with self._lock:
            self._due[me] = time.monotonic() + self._seconds
            begin, self._watched = not self._watched, True
        if begin:
            threading.Thread(target=self._watch, name="deadline", daemon=True).start()
        try:
            try:
                yield
            finally:
                with self._lock:  # from here on nothing is raised that has not been
                    self._due.pop(me, None)
        except _Overdue:
            raise TimeoutError(f"it took longer than {self._seconds:g} s") from None

    def _watch(self) -> None:
        while True:
            time.sleep(self._seconds / 10)
            with self._lock:
                self._watched = bool(self._due)
                if not self._watched:
                    return
                now = time.monotonic()
                for thread in [thread for thread, due in self._due.items() if due <= now]:
                    del self._due[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Overdue))
