"""Rows that a simulated device has but does not run: to be read, being read, waiting for a slot.

It keeps them in order of rank and takes them out; when they move on is decided above.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from engine.simulated.prefill import SimulatedPrefill
from engine.simulated.row import Rank, SimulatedRow


class SimulatedQueues:
    """Each row is in one of its four places."""

    def __init__(self) -> None:
        self.unread: list[list[SimulatedRow]] = []
        """Rows to prefill, those of one list together; the list with the best row first."""
        self.prefill: SimulatedPrefill | None = None
        """The rows whose prompts are being read."""
        self.staged: list[SimulatedRow] = []
        """Rows to embed, best first."""
        self.entering: list[SimulatedRow] = []
        """Rows to enter by shape, best first."""

    def __iter__(self) -> Iterator[SimulatedRow]:
        for rows in self.unread:
            yield from rows
        if self.prefill is not None:
            yield from self.prefill.rows
        yield from self.staged
        yield from self.entering

    def read(self, rows: list[SimulatedRow]) -> None:
        """Let rows wait to be prefilled together."""
        if rows:
            bisect.insort(self.unread, rows, key=lambda group: group[0].rank)

    def enter(self, row: SimulatedRow) -> None:
        """Let a row wait to enter by shape."""
        bisect.insort(self.entering, row, key=_rank)

    def stage(self, row: SimulatedRow) -> None:
        """Let a row whose K and V exist wait for a slot."""
        bisect.insort(self.staged, row, key=_rank)

    def drop(self, row: SimulatedRow) -> None:
        """Take a row out; does nothing when it is not here."""
        self.unread = [left for rows in self.unread if (left := [one for one in rows if one is not row])]
        self.staged = [one for one in self.staged if one is not row]
        self.entering = [one for one in self.entering if one is not row]
        if self.prefill is not None:
            self.prefill.drop(row)
            if not self.prefill.rows:
                self.prefill = None


def _rank(row: SimulatedRow) -> Rank:
    return row.rank
