"""The rows beyond which doubling gains little throughput."""

from collections.abc import Callable
from typing import NamedTuple

ROWS = (8, 16, 32, 64, 128)

COLUMNS = 128  # of measured rows

LEAST_GAIN = 0.1  # of throughput by doubling

UNMEASURED = 32  # least answer where time runs out


class FoundSlots(NamedTuple):
    """`complete`: up to the plateau or memory's end."""

    rows: int
    complete: bool


def find_slots(step: Callable[[int], float], most: int, time_limit: float, now: Callable[[], float]) -> FoundSlots:
    """The least of ROWS that gains less than LEAST_GAIN by doubling.

    step         seconds by rows
    most         rows in memory
    time_limit   seconds
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
