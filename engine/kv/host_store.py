"""Host memory for KV caches of rows handed back or swapped out."""

import math
import threading
from typing import Generic

from engine.device import RowT
from engine.messages import RowId


class HostStore(Generic[RowT]):
    """Shared by executors, thread-safe."""

    def __init__(self, capacity: float = math.inf) -> None:
        """Bytes."""
        self._capacity = capacity
        self._kept: dict[RowId, RowT] = {}
        # reserved, not here yet
        self._lent: dict[RowId, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        with self._lock:
            return self._used()

    def lend(self, row: RowT, size: int) -> bool:
        """Bytes; drops worse-ranked rows; False where that is not enough."""
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
        with self._lock:
            self._lent.pop(row_id, None)

    def keep(self, row: RowT) -> None:
        """Its KV cache must be in memory reserved for it."""
        with self._lock:
            self._lent.pop(row.row_id, None)
            self._kept[row.row_id] = row

    def take(self, row_id: RowId) -> RowT | None:
        with self._lock:
            return self._kept.pop(row_id, None)

    def _used(self) -> int:
        return sum(_bytes(row) for row in self._kept.values()) + sum(self._lent.values())


def _bytes(row: RowT) -> int:
    return 0 if row.kv is None else row.kv.bytes
