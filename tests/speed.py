"""How slow this machine is at Python, so that a test of seconds fails for the code's sake and for no machine's."""

import time

REFERENCE = 0.0040
"""Seconds that `work` takes on the Xeon (Sapphire Rapids, 2026) on which the bounds in seconds were set."""

ATTEMPTS = 20


def work() -> int:
    """Small objects, calls and look-ups, as in a callback of the loop."""
    table = {str(number): (number, [number]) for number in range(10_000)}
    return sum(number + len(held) for number, held in table.values()) + sum(str(key) in table for key in range(10_000))


def slowness() -> float:
    """How many times longer than REFERENCE this thread takes right now; at least 1."""
    seconds = []
    for _ in range(ATTEMPTS):
        begin = time.thread_time()
        work()
        seconds.append(time.thread_time() - begin)
    return max(1.0, min(seconds) / REFERENCE)
