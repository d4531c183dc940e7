"""The number of rows from which on twice as many bring little more throughput."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

ROWS = (8, 16, 32, 64, 128)

COLUMNS = 128  # tokens of each measured row

LEAST_GAIN = 0.1  # throughput that twice the rows must gain, since each row's tokens come later

UNMEASURED = 32  # answer at least this where time runs out while throughput still rises


class FoundSlots(NamedTuple):
    """`complete`: measured up to where throughput flattens or memory ends."""

    rows: int
    complete: bool


def find_slots(step: Callable[[int], float], most: int, time_limit: float, now: Callable[[], float]) -> FoundSlots:
    """The least of ROWS, at most `most`, which doubled gains less than LEAST_GAIN.

    step         seconds of a decode step of this many rows
    most         rows that memory holds
    time_limit   seconds; nothing is begun that would end later
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
