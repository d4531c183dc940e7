"""How this program starts itself, and how long work in it is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = (sys.executable, "-P", "-m", "lengthwise")
"""The beginning of a command. Without `-P`, Python would look in the working directory first."""

STOPPING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that what is known is kept and no child outlives this process.

    SIGINT too: a shell that starts a program in the background has it ignored, and Python then leaves it so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *STOPPING)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in STOPPING:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
