"""Work in a thread that ends with it, and time limits for foreign code.

OpenMP counts the helper threads of every living thread that computed; beyond the cores waiting ones sleep at once, and
a decode step takes half as long again. So one-off work, such as loading, must not stay in a living thread.
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
    """Returns or raises as `work`, once its thread has ended. `stop` is set when the caller is interrupted, which then
    waits.
    """
    with ThreadPoolExecutor(1, "own") as pool:
        future = pool.submit(work)
        try:
            wait([future])
        except BaseException:
            if stop is not None:
                stop.set()
            raise  # once the thread has ended
        return future.result()


class _Overdue(BaseException):
    """Passes `except Exception` of the code that runs there."""


class Deadline:
    """Ends any thread's `limit` block after `seconds`; a call into C ends first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[int, float] = {}  # deadline of each thread
        self._watched = False  # a watching thread exists
        self._lock = threading.Lock()

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Raise TimeoutError when the block takes too long."""
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
                with self._lock:  # nothing is raised from here on
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
