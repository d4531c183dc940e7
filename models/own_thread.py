"""Work in a thread of its own that is gone afterwards.

OpenMP counts the helper threads of each living thread that ever computed, and when they outnumber the cores it puts
waiting ones to sleep at once, which makes a decode step half as long again. So what computes once, such as loading a
model, must not do so in a thread that lives on beside those that serve or are measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
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
            wait([future])
            raise
        return future.result()
