"""How rows move through a device, for engine and simulator alike; without tensors or clock."""

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

from engine.device import Action, Device, OutOfMemoryError, RowT, StepOutcome
from engine.health import Shape
from engine.kv.host_store import HostStore
from engine.messages import Cause, Entry, Overflow, RowId, RowUpdate, StepStats
from engine.rows import RowTable, is_by_client

log = logging.getLogger(__name__)

RELIEF = 0.9  # of the KV budget, after running out of memory

Computed = TypeVar("Computed")

MOST_SETBACKS = 8  # enough to halve a large group down to one row


class Lifecycle(Generic[RowT]):
    """`next` decides, `finish` carries out."""

    def __init__(self, device: Device[RowT], store: HostStore[RowT] | None = None) -> None:
        self.device = device
        self.table = RowTable(device, HostStore() if store is None else store)
        self._reading = False  # a chunk is under way
        self._prefilled = False
        self._begun: tuple[RowId, ...] = ()  # in this action
        self._launched: StepStats | None = None  # not yet booked
        self.entering: list[RowT] = []  # by shape
        # in a row, other than out of memory
        self.failures = dict.fromkeys(Action, 0)
        self.short = False  # out of memory
        self.lost = False  # a row ended for it
        self._full_capacity = device.batch.capacity_tokens
        self._failed = Shape()
        self._longest_read = 0  # tokens

    def turn(self) -> list[RowUpdate]:
        self.table.clear()
        self.finish(self.next())
        return self.table.updates

    def prove(self, after_turn: Callable[[], None] = lambda: None) -> str | None:
        """As many rows as the failed action had, prompts as long, but none longer than prefilled before or half the
        batch. Returns what is wrong.
        """
        # a scope of its own: nothing cached
        most = min(self._longest_read, self.device.batch.capacity_tokens // 2)
        failed, specs = self._failed, self._failed.proof(most, f"proof {self.table.admitted}")
        self.table.admit(specs)
        error: str | None = None
        while self.table.rows and error is None:
            updates = self.turn()
            after_turn()
            error = next((update.error for update in updates if update.error is not None), None)
            error = "it runs out of memory" if self.short else error
        self.table.cancel([spec.row_id for spec in specs])
        self.table.clear()
        self._failed = Shape() if error is None else failed
        if error is None:
            self.failures = dict.fromkeys(Action, 0)
        return error

    def next(self) -> Action | None:
        """None to be asked again."""
        self.short = self.lost = False
        if not self._reading:  # prefill and decode alternate
            self._prefilled = self._prefill_is_wanted() and not (self._prefilled and self._may_decode())
            if self._prefilled and not self._launch_chunk():
                return None
        if self._reading and (self.device.chunk_done() or not self._may_decode()):
            return Action.PREFILL
        self._refill()
        if self.short or self._give_up_stranded():  # before failing a row
            return None
        self.entering = self._next_to_enter()
        if self.entering:
            return Action.ENTER
        while self.device.batch.rows and not self.device.batch.can_step():
            self._overflow()
        return Action.DECODE if self.device.batch.rows else None

    def finish(self, action: Action | None, iterations: int = 1) -> None:
        self.table.begun, self._begun = self.table.begun + self._begun, ()
        if self._launched is not None:
            self.table.tally, self._launched = self.table.tally + self._launched, None
        match action:
            case Action.PREFILL:
                self._finish_chunk()
            case Action.ENTER:
                self._finish_entry()
            case Action.DECODE:
                self._finish_decode(iterations)

    def iterations_to_look(self) -> float:
        """Until the rules decide something even if no row ends."""
        if self._prefill_is_wanted():
            return 1
        return math.inf if self.table.closed is None else max(1, self.table.closed.iterations_left)

    def _book(self, action: Action, outcome: StepOutcome[RowT]) -> None:
        faults = [error for _, error in outcome.failures if not is_by_client(error)]
        self.failures[action] = self.failures[action] + 1 if faults and not outcome.updates else 0
        self.table.book(outcome)

    def _attempt(self, action: Action, rows: list[RowT], compute: Callable[[], Computed]) -> Computed | None:
        """None on failure, whose rows are retried or failed."""
        try:
            return compute()
        except OutOfMemoryError as error:
            self._set_back(action, rows, error)
        except Exception as error:
            self.failures[action] += 1
            self._failed = Shape.from_rows(action, rows)
            if action is Action.PREFILL and len({row.group for row in rows}) > 1:
                self._part(rows)
            else:
                self.table.fail(rows, error)
        return None

    def _part(self, rows: list[RowT]) -> None:
        """Lest prompts fail by others that they were read with."""
        for group in {row.group: None for row in rows}:
            own = [row for row in rows if row.group is group]
            for row in own:
                row.setbacks += 1
            self.table.queue_unread(own)

    def _set_back(self, action: Action, rows: list[RowT], error: OutOfMemoryError) -> None:
        """Retry prompts that ran out of memory, groups in halves, at most MOST_SETBACKS times; shrink the KV budget
        unless halving may do.
        """
        self._failed = Shape.from_rows(action, rows)
        self.short = True
        if action is not Action.PREFILL or len(rows) == 1:
            self._relieve(error)
        lost, left = list[RowT](), list[RowT]()
        for row in sorted(rows if action is Action.PREFILL else self.entering, key=lambda row: row.rank):
            row.setbacks += 1
            (left if row.setbacks <= MOST_SETBACKS else lost).append(row)
        self.lost = bool(lost)
        if action is Action.PREFILL:
            half = (len(left) + 1) // 2
            self.table.queue_unread(left[:half])
            self.table.queue_unread(left[half:])
        self.table.fail(lost, error)

    # Prefill

    def _prefill_is_wanted(self) -> bool:
        return bool(self.device.prefilling) or self._next_to_read() is not None

    def _may_decode(self) -> bool:
        reading = self.device.prefilling or self._next_to_read() or ()
        if any(row.group.terms.entry is Entry.EMBED_BLOCKING for row in reading):
            return False
        return bool(self.device.batch.rows) or self._next_to_join() is not None

    def _next_to_read(self) -> list[RowT] | None:
        return next((rows for rows in self.table.unread if self._may_read(rows[0])), None)

    def _may_read(self, row: RowT) -> bool:
        if not row.group.terms.closed:
            return True
        if any(other.group is not row.group for other in self.device.batch.rows):
            return False
        return all(one.group is row.group or row.rank < one.rank for one in self.table.staged[:1])

    def _launch_chunk(self) -> bool:
        rows = list(self.device.prefilling)
        if not rows:
            rows = self.table.take_unread(self._next_to_read() or [])
            self._begun += tuple(row.row_id for row in rows)
        self._launched = self._attempt(Action.PREFILL, rows, partial(self.device.launch_chunk, rows))
        self._reading = self._launched is not None
        return self._reading

    def _finish_chunk(self) -> None:
        self._reading = False
        outcome = self._attempt(Action.PREFILL, list(self.device.prefilling), self.device.collect_chunk)
        if outcome is not None:
            for row in outcome.read:
                self._longest_read = max(self._longest_read, row.length)
                self.table.stage(row)
            self._book(Action.PREFILL, outcome)

    # Steps

    def _finish_entry(self) -> None:
        settled = self._attempt(Action.DECODE, list(self.device.batch.rows), self.device.settle)
        if settled is None:
            return
        self._book(Action.DECODE, settled)
        rows = [*self.entering, *self.device.batch.rows]
        outcome = self._attempt(Action.ENTER, rows, partial(self.device.enter, self.entering))
        if outcome is not None:
            del self.table.to_enter[: len(self.entering)]
            self.table.begun += tuple(row.row_id for row in self.entering)
            self._book(Action.ENTER, outcome)

    def _finish_decode(self, iterations: int) -> None:
        outcome = self._attempt(Action.DECODE, list(self.device.batch.rows), partial(self.device.step, iterations))
        if outcome is not None:
            self._book(Action.DECODE, outcome)
            if (closed := self.table.closed) is not None:
                closed.iterations_left -= iterations
                if closed.iterations_left <= 0:
                    self.table.hand_back(self.table.open_rows(), Cause.SLICE)

    # Joining

    def _refill(self) -> None:
        try:
            while (best := self._next_to_join()) is not None:
                if self._fits(best):
                    self.table.join(best)
                elif (running := list(self.device.batch.rows)) and all(row.ended for row in running):
                    for row in running:
                        self.table.remove(row)
                else:
                    self.device.fetch(best)  # it joins next
                    return
        except OutOfMemoryError as error:
            self._relieve(error)

    def _fits(self, row: RowT) -> bool:
        return self.device.batch.fits(row.cached_tokens, lasting=not row.group.terms.closed)

    def _next_to_join(self) -> RowT | None:
        staged, closed = self.table.staged, self.table.closed
        if closed is not None:
            return next((row for row in staged if row.group is closed), None)
        if staged and (group := staged[0].group).terms.closed:
            unread = (row.group is group for row in chain(self.device.prefilling, *self.table.unread))
            if self.device.batch.rows or any(unread):
                return None
        return staged[0] if staged else None

    def _give_up_stranded(self) -> bool:
        if self.device.batch.rows:
            return False
        staged = self._next_to_join()
        if staged is not None:
            stranded = [] if self._fits(staged) else [staged]
        else:
            stranded = [row for row in self.table.to_enter[:1] if not self.device.batch.admits([row.length])]
        self.table.fail(stranded, MemoryError("the row outgrows the device"))
        return bool(stranded)

    def _next_to_enter(self) -> list[RowT]:
        entering: list[RowT] = []
        for row in self.table.to_enter if self.table.closed is None else ():
            if not self.device.batch.admits([one.length for one in (*entering, row)]):
                break
            entering.append(row)
        return entering

    # Room

    @property
    def capacity(self) -> float:
        return self.device.batch.capacity_tokens / self._full_capacity

    def _overflow(self) -> None:
        """Split (Magnus, III-C) or scale down (Baton, 4.3)."""
        rows = [row for row in self.table.open_rows() if row.group.terms.overflow is Overflow.SPLIT]
        if len(rows) > 1:
            self.table.hand_back(rows, Cause.OVERFLOW)
        else:
            worst = max(self.device.batch.rows, key=lambda row: row.rank)
            (self.table.remove if worst.ended else self.table.swap_out)(worst)

    def _relieve(self, error: OutOfMemoryError) -> None:
        capacity = self.device.batch.capacity_tokens
        smaller = max(1, int(capacity * RELIEF))
        log.warning("out of memory: K and V get %d tokens instead of %d (%s)", smaller, capacity, error)
        self.short = True
        self._resize(smaller)

    def grow(self, part: float) -> None:
        """To this share of the initial capacity, swapping the batch out."""
        self._resize(max(1, int(self._full_capacity * min(part, 1.0))))

    def _resize(self, capacity_tokens: int) -> None:
        while self.device.batch.rows:
            self._overflow()
        self.device.batch.resize(capacity_tokens)
