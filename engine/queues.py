"""Rows that a device has but does not run: to be read, waiting for a slot. Kept in order of rank.

When they move on is decided above.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic

from engine.device import RowT
from engine.group import Rank


class Queues(Generic[RowT]):
    """Each row is in one of three places, if it is here."""

    def __init__(self) -> None:
        self.unread: list[list[RowT]] = []
        """Rows to prefill, those of one list together; the list with the best row first."""
        self.staged: list[RowT] = []
        """Rows to embed, best first; their K and V exist."""
        self.entering: list[RowT] = []
        """Rows to enter by shape, best first."""

    def __iter__(self) -> Iterator[RowT]:
        for rows in self.unread:
            yield from rows
        yield from self.staged
        yield from self.entering

    def add_unread(self, rows: list[RowT]) -> None:
        """Let rows wait to be prefilled together."""
        if rows:
            bisect.insort(self.unread, rows, key=lambda group: group[0].rank)

    def enter(self, row: RowT) -> None:
        """Let a row wait to enter by shape."""
        bisect.insort(self.entering, row, key=_rank)

    def stage(self, row: RowT) -> None:
        """Let a row whose K and V exist wait for a slot."""
        bisect.insort(self.staged, row, key=_rank)

    def drop(self, row: RowT) -> None:
        """Take a row out; does nothing when it is not here."""
        self.unread = [left for rows in self.unread if (left := [one for one in rows if one is not row])]
        self.staged = [one for one in self.staged if one is not row]
        self.entering = [one for one in self.entering if one is not row]


def _rank(row: RowT) -> Rank:
    return row.rank
