"""All rows of a device. Rank is priority, then admission: the worst is swapped out first."""

import bisect
import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Generic

from engine import messages
from engine.device import Device, Group, RowFault, RowT, StepOutcome, similar_lengths
from engine.kv.host_store import HostStore

log = logging.getLogger(__name__)

OPEN = messages.BatchPolicy()  # others may join


class RowTable(Generic[RowT]):
    """A row is in one place: a queue, prefill, or the batch."""

    def __init__(self, device: Device[RowT], store: HostStore[RowT]) -> None:
        self._device = device
        self._store = store
        self.rows: dict[messages.RowId, RowT] = {}
        self.unread: list[list[RowT]] = []  # to prefill, in groups, best first
        self.staged: list[RowT] = []  # best first
        self.to_enter: list[RowT] = []  # by shape, best first
        self.closed: Group | None = None  # static batch
        self.admitted = 0
        self._handed_back: list[messages.HandedBack] = []
        self.clear()

    @property
    def idle(self) -> bool:
        return not (self.rows or self._handed_back)

    def shape(self) -> messages.BatchShape:
        return self._device.batch.shape(len(self.staged))

    def clear(self) -> None:
        self.updates: list[messages.RowUpdate] = []
        self.begun: tuple[messages.RowId, ...] = ()  # prefill
        self.swapped_out: tuple[messages.RowId, ...] = ()  # to host
        self.tally = messages.StepStats()

    def take_handed_back(self) -> tuple[messages.HandedBack, ...]:
        handed_back, self._handed_back = tuple(self._handed_back), []
        return handed_back

    def report(self, executor: int, step: int, seconds: float) -> messages.StepReport:
        updates, back = tuple(self.updates), self.take_handed_back()
        shape, swapped = self.shape(), self.swapped_out
        return messages.StepReport(executor, step, updates, shape, seconds, self.begun, back, self.tally, swapped)

    def carry_out(self, command: messages.Admit | messages.Pause | messages.Cancel) -> None:
        match command:
            case messages.Admit(rows, terms):
                self.admit(rows, terms)
            case messages.Pause(row_ids):
                self.pause(row_ids)
            case messages.Cancel(row_ids):
                self.cancel(row_ids)

    # In

    def admit(self, specs: Iterable[messages.RowSpec], terms: messages.BatchPolicy = OPEN) -> None:
        group = Group(terms)
        unread: list[RowT] = []
        for spec in specs:
            row = self._store.take(spec.row_id) or self._device.new_row(spec)
            row.rank, row.group = (spec.priority, self.admitted), group
            self.admitted += 1
            self.rows[row.row_id] = row
            if row.kv is not None:
                self.stage(row)
            elif terms.entry is messages.Entry.SHAPE and not terms.closed and not row.scores_prompt:
                bisect.insort(self.to_enter, row, key=attrgetter("rank"))
            else:  # no batch to enter, or prompt log-probabilities, made by prefill only
                unread.append(row)
        parts = [unread]
        if terms.entry is messages.Entry.EMBED_BLOCKING:
            parts = [[row] for row in unread]
        elif not terms.closed:
            unread.sort(key=self._copied_prefix)  # stable
            parts = [list(rows) for _, rows in groupby(unread, self._copied_prefix)]
        elif not terms.prefill_together:
            parts = similar_lengths(unread, attrgetter("length"), self._device.max_prefill_tokens)
        for part in parts:
            self.queue_unread(part)

    def _copied_prefix(self, row: RowT) -> int:
        kept = 0 if row.scores_prompt else self._device.kept_prefix(row)
        return kept if kept >= row.group.terms.kept_from else 0

    def queue_unread(self, rows: list[RowT]) -> None:
        if rows:
            bisect.insort(self.unread, rows, key=lambda group: group[0].rank)

    def take_unread(self, rows: list[RowT]) -> list[RowT]:
        """With others behind, where one pass reads all sooner."""
        self.unread.remove(rows)
        if not (self._device.skips_padding and self._may_join_others(rows[0])):
            return rows
        terms, prefix = rows[0].group.terms, self._copied_prefix(rows[0])
        longest = max(row.length for row in rows)
        for more in [*self.unread]:
            longest = max(longest, *(row.length for row in more))
            fits = (len(rows) + len(more)) * longest <= self._device.max_prefill_tokens
            alike = more[0].group.terms == terms and self._may_join_others(more[0])
            if not (fits and alike and self._copied_prefix(more[0]) == prefix):
                break
            self.unread.remove(more)
            rows = rows + more
        return rows

    def _may_join_others(self, row: RowT) -> bool:
        terms = row.group.terms
        return not (row.setbacks or terms.closed or terms.entry is messages.Entry.EMBED_BLOCKING)

    def stage(self, row: RowT) -> None:
        bisect.insort(self.staged, row, key=attrgetter("rank"))

    def join(self, row: RowT) -> None:
        """A static batch then runs alone."""
        closed = row.group.terms.closed
        self._device.insert(row, lasting=not closed)
        self.staged.remove(row)
        self._store.give_back(row.row_id)
        if closed:
            self.closed = row.group

    # Out

    def book(self, outcome: StepOutcome[RowT]) -> None:
        """Ended rows leave, or keep a static batch's slot."""
        self.tally += outcome.tally
        self.updates += outcome.updates
        for row in [self.rows[update.row_id] for update in outcome.updates if update.finish_reason is not None]:
            if row.group is not self.closed:
                self.remove(row)
        self._dissolve()
        for row, error in outcome.failures:
            self.fail([row], error)

    def cancel(self, row_ids: Iterable[messages.RowId]) -> None:
        for row_id in row_ids:
            self._store.take(row_id)
            if row_id in self.rows:
                self.remove(self.rows[row_id])

    def pause(self, row_ids: Iterable[messages.RowId]) -> None:
        """In the next report; ended and unknown ids are ignored."""
        here = [self.rows[row_id] for row_id in dict.fromkeys(row_ids) if row_id in self.rows]
        self.hand_back([row for row in here if not row.ended], messages.Cause.PAUSE)

    def hand_back_all(self) -> None:
        self.hand_back([row for row in self.rows.values() if not row.ended], messages.Cause.FAULT)

    def swap_out(self, row: RowT) -> None:
        if self._save(row):
            self.stage(row)
            self.swapped_out += (row.row_id,)
        else:
            self.hand_back([row], messages.Cause.OVERFLOW)

    def salvage(self) -> tuple[messages.RowId, ...]:
        """Rows that begun and were not running: the latter may have unreported tokens."""
        safe = [row for row in self.rows.values() if row.step and row not in self._device.batch.rows]
        for row in safe:
            if row.kv is not None and not row.kv.in_host_memory:
                row.kv = None
            self._store.keep(row)
        unreported = [row_id for handed_back in self._handed_back for row_id in handed_back.row_ids]
        return (*unreported, *(row.row_id for row in safe))

    def leave_store(self) -> None:
        """Thread-safe; rows live on elsewhere, and old copies must not replace newer ones."""
        self._store = HostStore()

    def fail(self, rows: Iterable[RowT], error: Exception) -> None:
        failed, by_client = [row for row in rows if not row.ended], is_by_client(error)
        fault = f"the engine failed on this request ({type(error).__name__})"
        said = str(error) if isinstance(error, RowFault) else fault
        if failed:
            level = logging.INFO if by_client else logging.ERROR
            log.log(level, "rows failed: %s", error, exc_info=not by_client and error)
        for row in failed:
            self.remove(row, wipe=isinstance(error, RowFault) and error.wipe)
            end = messages.FinishReason.ERROR
            self.updates.append(messages.RowUpdate(row.row_id, finish_reason=end, error=said, by_client=by_client))

    def hand_back(self, rows: Iterable[RowT], cause: messages.Cause) -> None:
        """From the last place on, so that none moves."""
        leaving, running = list(rows), list(self._device.batch.rows)
        self.updates += self._device.unreported(leaving)
        for row in sorted(leaving, key=lambda row: -running.index(row) if row in running else 0):
            if row.length < row.group.terms.kept_from or not self._save(row):
                row.kv = None
            self._store.keep(row)
            self.remove(row)
        if leaving:
            dropped = tuple(row.row_id for row in leaving if row.kv is None)
            self._handed_back.append(messages.HandedBack(tuple(row.row_id for row in leaving), cause, dropped))

    def _save(self, row: RowT) -> bool:
        if row.kv is None and row not in self._device.batch.rows:
            return False
        return self._store.lend(row, self._device.kv_bytes(row)) and self._device.save(row)

    def remove(self, row: RowT, *, wipe: bool = False) -> None:
        del self.rows[row.row_id]
        self._store.give_back(row.row_id)
        if row in self._device.batch.rows:
            self._device.batch.remove(row, wipe=wipe)
        else:
            self._device.drop(row)
            self.unread = [left for rows in self.unread if (left := [one for one in rows if one is not row])]
            self.staged = [one for one in self.staged if one is not row]
            self.to_enter = [one for one in self.to_enter if one is not row]
        self._dissolve()

    def open_rows(self) -> Iterator[RowT]:
        return (row for row in self.rows.values() if row.group is self.closed and not row.ended)

    def _dissolve(self) -> None:
        if self.closed is not None and not any(self.open_rows()):
            group, self.closed = self.closed, None
            for row in [row for row in self.rows.values() if row.group is group]:
                self.remove(row)


def is_by_client(error: Exception) -> bool:
    return isinstance(error, RowFault) and error.by_client
