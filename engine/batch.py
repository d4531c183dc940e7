"""The running batch: rows and the arena that holds their K and V, kept in step. The only place that changes both.

Knows no queue and no order of merit: who joins and who leaves is decided above.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.arena import ArenaFull, KvArena, RowKv
from engine.messages import BatchShape, RowId
from engine.row import Row
from models.loader import LoadedModel

HEADROOM = 32
"""Columns that must stay free when a row joins others: a row that would have to leave again in a few steps
costs two copies for nothing."""


class RunningBatch:
    """Rows that decode together, row i of the list being row i of the arena."""

    def __init__(self, model: LoadedModel, arena: KvArena, *, headroom: int = HEADROOM) -> None:
        self._model = model
        self._headroom = headroom
        self.arena = arena
        self.rows: list[Row] = []

    def __len__(self) -> int:
        return len(self.rows)

    def fits(self, length: int) -> bool:
        """Whether a row of `length` tokens of K and V can join and all can go on for some steps."""
        return self._view_for(length) is not None

    def insert(self, row: Row, kv: RowKv) -> None:
        """Let a row join (Baton's embed); raises ArenaFull unless `fits`."""
        view = self._view_for(kv.length)
        if view is None:
            raise ArenaFull(f"no view holds {len(self) + 1} rows with one of {kv.length} tokens")
        if view != (self.arena.rows, self.arena.columns):
            self.arena.reshape(*view)
        self.arena.insert(kv)
        self.rows.append(row)

    def remove(self, row: Row, *, wipe: bool = False) -> None:
        """Let a row leave; its place and memory are free at once. `wipe` for rows that computed NaN."""
        place = self.rows.index(row)
        self.arena.remove(place, wipe=wipe)
        last = self.rows.pop()
        if last is not row:
            self.rows[place] = last

    def extract(self, row: Row) -> RowKv:
        """Let a row leave and keep its K and V, to insert it again later without recomputing."""
        kv = self.arena.extract(self.rows.index(row))
        self.remove(row)
        return kv

    def find(self, row_id: RowId) -> Row | None:
        return next((row for row in self.rows if row.row_id == row_id), None)

    def step(self) -> Tensor:
        """One decode iteration; returns the logits (rows, vocab) of each row's next token.

        Raises ArenaFull when no view of the budget holds one more column: take a row out and try again.
        A step that fails leaves rows and arena as they were.
        """
        self._open_column()
        try:
            return self._forward()
        except BaseException:
            self.arena.drop_column()
            raise

    def _forward(self) -> Tensor:
        device = self._model.device
        tokens = torch.tensor([[row.last_token] for row in self.rows], device=device)
        positions = torch.tensor([[row.kv_length] for row in self.rows], device=device)
        return self._model.forward(tokens, positions, self.arena.mask(), self.arena)[:, -1]

    def _open_column(self) -> None:
        arena = self.arena
        if arena.window == arena.columns:
            view = choose_view(arena.capacity_tokens, arena.max_rows, len(self), arena.window + 1, arena.window + 1)
            if view is None:
                raise ArenaFull(f"{len(self)} rows of up to {arena.window} tokens fill the budget")
            arena.reshape(*view)
        arena.open_column()

    def _view_for(self, length: int) -> tuple[int, int] | None:
        """The view to join with: the present one when it will do, else a better one, else None."""
        arena, rows = self.arena, len(self) + 1
        tight = max(arena.window, length) + 1
        needed = tight if rows == 1 else tight + self._headroom
        if rows <= arena.rows and needed <= arena.columns:
            return arena.rows, arena.columns
        if rows > arena.max_rows:
            return None
        return choose_view(arena.capacity_tokens, arena.max_rows, rows, needed, 2 * needed)

    def shape(self, staged: int = 0) -> BatchShape:
        arena = self.arena
        return BatchShape(len(self), staged, arena.start, arena.end, arena.columns, arena.capacity_tokens)

    def check(self) -> None:
        """Assert that rows and arena agree; for tests."""
        self.arena.check()
        assert len(self.rows) == self.arena.live
        for place, row in enumerate(self.rows):
            assert self.arena.length(place) == row.kv_length, f"row {row.row_id}"


def choose_view(capacity: int, max_rows: int, rows: int, columns: int, wanted_columns: int) -> tuple[int, int] | None:
    """Rows x columns for a batch that needs at least these: as many rows as leave `wanted_columns`, else just enough.

    Returns None when rows x columns exceeds the capacity.
    """
    if rows * columns > capacity:
        return None
    most = max_rows
    while most > rows and capacity // most < wanted_columns:
        most //= 2
    chosen = max(rows, most)
    return chosen, capacity // chosen
