"""Which rows join the running batch, and which leave it when memory runs short. Torch-free, synchronous,
single-threaded.

Staged rows are embedded in order of rank; rows that enter by shape come with a step of their own.
"""

from __future__ import annotations

import logging

from engine.device import Group, OutOfMemoryError, RowT
from engine.messages import Cause, Overflow
from engine.rows import RowTable

log = logging.getLogger(__name__)

RELIEF = 0.9
"""Part of the budget for K and V that is left after the device ran out of memory."""


class Refill(RowTable[RowT]):
    """The way of rows from their queues into the batch, and out of it where there is no room."""

    def _refill(self) -> None:
        """Embed staged rows while they fit, best rank first; none overtakes a better one."""
        try:
            while (best := self._next_to_join()) is not None:
                if self._fits(best):
                    self._join(best)
                elif (running := list(self._device.batch.rows)) and all(row.ended for row in running):
                    for row in running:
                        self._forget(row)
                else:
                    self._device.fetch(best)  # it is next, so that its copy need not wait for the slot
                    return
        except OutOfMemoryError as error:
            self._relieve(error)

    def _fits(self, row: RowT) -> bool:
        """A closed batch was measured to fit by its scheduler: its rows need no headroom."""
        return self._device.batch.fits(row.cached_tokens, lasting=not row.group.terms.closed)

    def _join(self, row: RowT) -> None:
        self._device.insert(row, lasting=not row.group.terms.closed)
        self._queues.staged.remove(row)
        self._store.give_back(row.row_id)
        if row.group.terms.closed:
            self._closed = row.group

    def _next_to_join(self) -> RowT | None:
        """The best staged row that may: of a closed batch that runs, or can start to, its own rows alone."""
        staged = self._queues.staged
        if self._closed is not None:
            return next((row for row in staged if row.group is self._closed), None)
        if staged and staged[0].group.terms.closed and (self._device.batch.rows or not staged[0].group.ready):
            return None
        return staged[0] if staged else None

    def _give_up_stranded(self) -> bool:
        """A row that does not fit though the device is empty never will, and must not block those behind it."""
        if self._device.batch.rows:
            return False
        staged = self._next_to_join()
        if staged is not None:
            stranded = [] if self._fits(staged) else [staged]
        else:
            stranded = [row for row in self._queues.entering[:1] if not self._device.batch.admits([row.length])]
        self._fail(stranded, MemoryError("the row outgrows the device"))
        return bool(stranded)

    def _next_to_enter(self) -> list[RowT]:
        """The best rows that there is room for now."""
        entering: list[RowT] = []
        for row in self._queues.entering if self._closed is None else ():
            if not self._device.batch.admits([one.length for one in (*entering, row)]):
                break
            entering.append(row)
        return entering

    # Room

    def _overflow(self) -> None:
        """Rows outgrow the device: the batch is split (Magnus, section III-C) or scaled down (Baton, section 4.3)."""
        group = self._closed
        if group is not None and group.terms.overflow is Overflow.SPLIT and len(group.open) > 1:
            self._hand_back(self._open_rows(group), Cause.OVERFLOW)
        else:
            self._swap_out_worst()

    def _swap_out_worst(self) -> None:
        worst = max(self._device.batch.rows, key=lambda row: row.rank)
        if worst.ended:
            self._forget(worst)
        elif not self._save(worst):
            self._hand_back([worst], Cause.OVERFLOW)
        else:
            self._queues.stage(worst)
            self.extracted += (worst.row_id,)

    def _relieve(self, error: OutOfMemoryError) -> None:
        """Take every running row out and go on with a smaller budget; the rows come back as they fit."""
        capacity = self._device.batch.capacity_tokens
        smaller = max(1, int(capacity * RELIEF))
        log.warning("out of memory: K and V get %d tokens instead of %d (%s)", smaller, capacity, error)
        self.short = True
        self._resize(smaller)

    def grow(self, part: float) -> None:
        """Take memory for K and V back, up to this part of what there was at first, for which the batch is put by."""
        self._resize(max(1, int(self._full_capacity * min(part, 1.0))))

    def _resize(self, capacity_tokens: int) -> None:
        while self._device.batch.rows:
            self._overflow()
        self._device.batch.resize(capacity_tokens)

    def _open_rows(self, group: Group) -> list[RowT]:
        return [row for row in self._rows.values() if row.row_id in group.open]
