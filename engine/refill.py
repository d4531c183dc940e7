"""Which rows join the running batch, and which make way for them. Torch-free, synchronous, single-threaded.

Staged rows are embedded in order of rank; rows that enter by shape come with a step of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.device import OutOfMemoryError, RowT
from engine.group import Rank
from engine.row_table import RowTable


class Refill(RowTable[RowT]):
    """The way of rows from their queues into the batch."""

    def _refill(self) -> None:
        """Embed staged rows while they fit, best rank first; none overtakes a better one.

        A row of better priority than running ones takes their place, the worst first (Baton's preemption).
        """
        try:
            while (best := self._next_to_join()) is not None:
                if self._fits(best):
                    self._join(best)
                elif (running := list(self._device.batch.rows)) and all(row.ended for row in running):
                    for row in running:
                        self._forget(row)
                elif self._fits(best, beside=self._rivals(best.rank)):
                    self._extract_worst()
                else:
                    self._device.fetch(best)  # it is next, so that its copy need not wait for the slot
                    return
        except OutOfMemoryError as error:
            self._relieve(error)

    def _fits(self, row: RowT, beside: Collection[RowT] | None = None) -> bool:
        """A closed batch was measured to fit by its scheduler: its rows need no headroom."""
        return self._device.batch.fits(row.cached_tokens, lasting=not row.group.terms.closed, beside=beside)

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
        return staged[0] if staged and not self._enters_before(staged[0].rank) else None

    def _enters_before(self, rank: Rank) -> bool:
        """Whether a row of better priority can enter by shape now: a staged one that joined would make way for it."""
        best = next(iter(self._queues.entering), None)
        if best is None or best.rank[0] >= rank[0]:
            return False
        return self._device.batch.admits([best.length], beside=self._rivals(best.rank))

    def _rivals(self, rank: Rank) -> frozenset[RowT]:
        """Running rows that do not make way for a row of this rank. Beside these it is asked whether it may come in, by
        the same measure as beside all: else rows would make way for one that then stays out.
        """
        return frozenset(row for row in self._device.batch.rows if row.rank[0] <= rank[0])

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
        """The best rows that there is room for now; one of better priority than running ones takes their place."""
        entering: list[RowT] = []
        lengths: list[int] = []
        for row in self._queues.entering if self._closed is None else ():
            lengths.append(row.length)
            if not entering and self._device.batch.admits(lengths, beside=self._rivals(row.rank)):
                while not self._device.batch.admits(lengths):
                    self._extract_worst()
            if not self._device.batch.admits(lengths):
                break
            entering.append(row)
        return entering
