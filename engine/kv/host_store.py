"""Host memory for K and V of rows that wait: handed back, to go on later, or taken out for lack of room on a device.

Knows no batch. What does not fit is read again, the worst-ranked rows first.
"""

from __future__ import annotations

import math
import threading
from typing import Generic

from engine.device import RowT
from engine.messages import RowId


class HostStore(Generic[RowT]):
    """Rows that were handed back, until they are admitted again or cancelled, and the account of all host memory for
    K and V. One for all executors of a process, so that a row may go on elsewhere; each call may come from any thread.
    """

    def __init__(self, capacity: float = math.inf) -> None:
        """`capacity`: bytes that K and V may take."""
        self._capacity = capacity
        self._kept: dict[RowId, RowT] = {}
        self._lent: dict[RowId, int] = {}  # bytes, of rows that wait on their executor or are on their way here
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Host memory that K and V take."""
        with self._lock:
            return self._used()

    def lend(self, row: RowT, size: int) -> bool:
        """Set `size` bytes aside for a row's K and V, until it is kept or the bytes are returned.

        If need be, rows kept here that rank worse lose theirs, the worst first. False, and nothing changes, where even
        that is not enough.
        """
        with self._lock:
            free = self._capacity - self._used() + self._lent.get(row.row_id, 0)
            dropped: list[RowT] = []
            worse = [one for one in self._kept.values() if one.kv is not None and one.rank > row.rank]
            for one in sorted(worse, key=lambda one: one.rank, reverse=True):
                if free >= size:
                    break
                dropped.append(one)
                free += _bytes(one)
            if free < size:
                return False
            for one in dropped:
                one.kv = None
            self._lent[row.row_id] = size
            return True

    def give_back(self, row_id: RowId) -> None:
        """A row's K and V are no longer in host memory; does nothing where none was lent."""
        with self._lock:
            self._lent.pop(row_id, None)

    def keep(self, row: RowT) -> None:
        """Put a row by with all its state; K and V that it has must be in host memory that was lent for them."""
        with self._lock:
            self._lent.pop(row.row_id, None)
            self._kept[row.row_id] = row

    def take(self, row_id: RowId) -> RowT | None:
        """Take a row out again; None when it was never handed back."""
        with self._lock:
            return self._kept.pop(row_id, None)

    def _used(self) -> int:
        return sum(_bytes(row) for row in self._kept.values()) + sum(self._lent.values())


def _bytes(row: RowT) -> int:
    return 0 if row.kv is None else row.kv.bytes
