"""Runs work in a thread of its own that is gone afterwards, so that never two threads of a process have computed.

OpenMP counts the helpers of each living thread that ever computed, and when they outnumber the cores it puts waiting
ones to sleep at once. transformers' continuous batching computes in a thread that it makes itself: had the main
thread computed before, it would be measured slower than it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """Raised by work that was asked to stop."""


def apart(work: Callable[[threading.Event], T]) -> T:
    """What `work` returns or raises. It is given an event that asks it to stop, which an interrupt sets."""
    stop = threading.Event()
    future: Future[T] = Future()
    thread = threading.Thread(target=_carry_out, args=(work, stop, future), name="turn")
    thread.start()
    try:
        wait([future])  # not the thread: Python 3.11 takes a thread for ended when waiting for it is interrupted
    except BaseException:
        stop.set()
        wait([future])
        raise
    finally:
        thread.join()
    return future.result()


def _carry_out(work: Callable[[threading.Event], T], stop: threading.Event, future: Future[T]) -> None:
    try:
        future.set_result(work(stop))
    except BaseException as error:
        future.set_exception(error)
