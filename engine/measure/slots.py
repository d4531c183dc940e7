"""How many rows a device gains by: the number from which on twice as many bring little more throughput."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

ROWS = (8, 16, 32, 64, 128)

COLUMNS = 128
"""Tokens of each row that is measured."""

LEAST_GAIN = 0.1
"""The least by which twice the rows must raise throughput to be worth it: each row's next token comes later for it."""

UNMEASURED = 32
"""The least that is answered where time runs out while throughput still rises."""


class FoundSlots(NamedTuple):
    """A number of rows, and whether throughput was measured up to where it flattens or memory ends."""

    rows: int
    complete: bool


def find_slots(step: Callable[[int], float], most: int, time_limit: float, now: Callable[[], float]) -> FoundSlots:
    """The least of ROWS of which twice as many raise throughput by less than LEAST_GAIN; `most` at most.

    step         seconds of a decode step of this many rows
    most         rows that memory holds
    time_limit   seconds; nothing more is measured once the next would probably end later
    """
    begin, slots, rate = now(), min(most, ROWS[0]), 0.0
    measured = [rows for rows in ROWS if rows <= most]
    for rows in measured:
        before = now()
        throughput = rows / step(rows)
        if throughput < (1 + LEAST_GAIN) * rate:
            break
        slots, rate, after = rows, throughput, now()
        if after + 2 * (after - before) > begin + time_limit:
            return FoundSlots(min(most, max(slots, UNMEASURED)), complete=rows == measured[-1])
    return FoundSlots(slots, complete=True)
