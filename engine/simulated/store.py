"""Rows that no simulated executor runs: handed back, and to go on later, wherever they are admitted."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import RowId


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a row that was handed back."""

    generated: int
    """Tokens made and reported so far."""
    has_kv: bool
    """Whether it can go on at once, else all its tokens are read again."""


class SimulatedStore:
    """Host memory, one for all executors of a simulation."""

    def __init__(self) -> None:
        self._kept: dict[RowId, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, row_id: RowId, kept: Kept) -> None:
        self._kept[row_id] = kept

    def take(self, row_id: RowId) -> Kept | None:
        """Take a row out again; None when it was never handed back."""
        return self._kept.pop(row_id, None)
