"""Measured work in a thread of its own that an interrupt stops.

transformers' continuous batching computes in a thread that it makes itself: had the main thread computed before, it
would be measured slower than it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from models.own_thread import run_in_own_thread

T = TypeVar("T")


class Interrupted(Exception):
    """Raised by work that was asked to stop."""


def apart(work: Callable[[threading.Event], T]) -> T:
    """Return or raise the same as `work`, which is given an event that asks it to stop; an interrupt sets it."""
    stop = threading.Event()
    return run_in_own_thread(partial(work, stop), stop)
