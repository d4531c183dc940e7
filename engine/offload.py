"""Host memory for rows that no executor runs: handed back, and to go on later. Knows no batch and no order of merit."""

from __future__ import annotations

from dataclasses import dataclass

from engine.kv import RowKv
from engine.messages import RowId
from engine.row import Row


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that was handed back: all its state, and its K and V unless they shall be computed again."""

    row: Row
    kv: RowKv | None


class HostStore:
    """Rows that were handed back, until they are admitted again or cancelled. One for all executors of a process, so
    that a row may go on elsewhere.

    Each call is one operation on a dictionary, which threads may do side by side; no row is with two of them.
    """

    def __init__(self) -> None:
        self._kept: dict[RowId, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Host memory that their K and V take."""
        return sum(kept.kv.bytes for kept in list(self._kept.values()) if kept.kv is not None)

    def keep(self, row: Row, kv: RowKv | None) -> None:
        """Put a row by; its K and V must be in host memory."""
        self._kept[row.row_id] = Kept(row, kv)

    def take(self, row_id: RowId) -> Kept | None:
        """Take a row out again; None when it was never handed back."""
        return self._kept.pop(row_id, None)
