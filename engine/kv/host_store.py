"""Host memory for K and V of rows that wait: handed back, to go on later, or taken out for lack of room on a device.

Knows no batch. What does not fit is read again, the worst-ranked rows first.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from engine.kv.row_kv import RowKv
from engine.messages import RowId
from engine.row import Row


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that was handed back: all its state, and its K and V unless they shall be computed again."""

    row: Row
    kv: RowKv | None


class HostStore:
    """Rows that were handed back, until they are admitted again or cancelled, and the account of all host memory for
    K and V. One for all executors of a process, so that a row may go on elsewhere; each call may come from any thread.
    """

    def __init__(self, capacity: float = math.inf) -> None:
        """`capacity`: bytes that K and V may take."""
        self._capacity = capacity
        self._kept: dict[RowId, Kept] = {}
        self._lent: dict[RowId, int] = {}  # bytes, of rows that wait on their executor or are on their way here
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Host memory that K and V take."""
        with self._lock:
            return self._used()

    def lend(self, row: Row, size: int) -> bool:
        """Set `size` bytes aside for a row's K and V, until it is kept or the bytes are returned.

        If need be, rows kept here that rank worse lose theirs, the worst first. False, and nothing changes, where even
        that is not enough.
        """
        with self._lock:
            free = self._capacity - self._used() + self._lent.get(row.row_id, 0)
            dropped: list[Row] = []
            for one, kv in self._worse_than(row):
                if free >= size:
                    break
                dropped.append(one)
                free += kv.bytes
            if free < size:
                return False
            self._kept |= {one.row_id: Kept(one, None) for one in dropped}
            self._lent[row.row_id] = size
            return True

    def give_back(self, row_id: RowId) -> None:
        """A row's K and V are no longer in host memory; does nothing where none was lent."""
        with self._lock:
            self._lent.pop(row_id, None)

    def keep(self, row: Row, kv: RowKv | None) -> None:
        """Put a row by; its K and V must be in host memory that was lent for them."""
        with self._lock:
            self._lent.pop(row.row_id, None)
            self._kept[row.row_id] = Kept(row, kv)

    def take(self, row_id: RowId) -> Kept | None:
        """Take a row out again; None when it was never handed back."""
        with self._lock:
            return self._kept.pop(row_id, None)

    def _used(self) -> int:
        return sum(one.kv.bytes for one in self._kept.values() if one.kv is not None) + sum(self._lent.values())

    def _worse_than(self, row: Row) -> list[tuple[Row, RowKv]]:
        """Rows with K and V that rank worse, the worst first."""
        worse = [(one.row, one.kv) for one in self._kept.values() if one.kv is not None and one.row.rank > row.rank]
        return sorted(worse, key=lambda pair: pair[0].rank, reverse=True)
