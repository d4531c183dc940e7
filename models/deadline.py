"""Python code of others that may never end, such as a model's chat template, is ended after a time."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


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
