"""One-off work in a thread that ends with it, since OpenMP counts helpers of living threads, and time limits."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run_in_own_thread(work: Callable[[], T]) -> T:
    """Propagates results; an interruption waits for its end."""
    with ThreadPoolExecutor(1, "own") as pool:
        return pool.submit(work).result()


class _Overdue(BaseException):
    """Passes `except Exception`."""


class Deadline:
    """Of any thread's `limit` block; C calls end first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[int, float] = {}  # by thread
        self._watched = False
        self._lock = threading.Lock()

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Raises TimeoutError."""
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
