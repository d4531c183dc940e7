"""Rows that a device has but does not run yet, or no more: to be read, being read, waiting for a slot.

It keeps them in order of rank and takes them out; when they move on is decided above.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.forward.prefill import Prefill
from engine.kv.row_kv import RowKv
from engine.messages import RowId
from engine.row import Rank, Row


@dataclass(order=True, slots=True)
class Staged:
    """A row out of the batch with its K and V: just prefilled, or taken out for lack of room."""

    rank: Rank
    row: Row = field(compare=False)
    kv: RowKv = field(compare=False)


class Queues:
    """Each row is in one of its four places."""

    def __init__(self) -> None:
        self.unread: list[list[Row]] = []
        """Rows to prefill, those of one list together; the list with the best row first."""
        self.prefill: Prefill | None = None
        """The rows whose prompts are being read."""
        self.staged: list[Staged] = []
        """Rows to embed, best first."""
        self.entering: list[Row] = []
        """Rows to enter by shape, best first."""

    def __bool__(self) -> bool:
        return bool(self.unread or self.prefill or self.staged or self.entering)

    def __iter__(self) -> Iterator[Row]:
        for rows in self.unread:
            yield from rows
        if self.prefill is not None:
            yield from self.prefill.rows
        yield from (staged.row for staged in self.staged)
        yield from self.entering

    def read(self, rows: list[Row]) -> None:
        """Let rows wait to be prefilled together."""
        if rows:
            bisect.insort(self.unread, rows, key=lambda group: group[0].rank)

    def enter(self, row: Row) -> None:
        """Let a row wait to enter by shape."""
        bisect.insort(self.entering, row, key=lambda other: other.rank)

    def stage(self, row: Row, kv: RowKv) -> None:
        """Let a row whose K and V exist wait for a slot."""
        bisect.insort(self.staged, Staged(row.rank, row, kv))

    def kv_of(self, row: Row) -> RowKv | None:
        """K and V of a row that waits for a slot; None for others, which have none."""
        return next((staged.kv for staged in self.staged if staged.row is row), None)

    def drop(self, row_id: RowId) -> None:
        """Take a row out; does nothing when it is not here."""
        self.unread = [left for rows in self.unread if (left := [row for row in rows if row.row_id != row_id])]
        self.staged = [staged for staged in self.staged if staged.row.row_id != row_id]
        self.entering = [row for row in self.entering if row.row_id != row_id]
        if self.prefill is not None:
            self.prefill.drop(row_id)
            if not self.prefill.rows:
                self.prefill = None
