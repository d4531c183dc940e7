"""The way of rows through a simulated device, by the rules of the real one (engine.pipeline): to be read, staged,
running, gone. Lengths take the place of tensors, and as many iterations as nothing interrupts are one work.

Both ways of a row's K and V, out to host memory and in again, are charged when the row comes back into a batch.

Synchronous; knows no clock and no strategy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from engine.group import Group
from engine.messages import (
    BatchShape,
    Cause,
    Entry,
    FinishReason,
    HandedBack,
    Overflow,
    RowId,
    RowSpec,
    RowUpdate,
    Tally,
    Terms,
)
from engine.similar import similar_lengths
from engine.simulated.batch import SimulatedBatch
from engine.simulated.cost import Cost
from engine.simulated.outbox import Outbox
from engine.simulated.prefill import SimulatedPrefill
from engine.simulated.queues import SimulatedQueues
from engine.simulated.row import Rank, SimulatedRow
from engine.simulated.store import Kept, SimulatedStore
from engine.simulated.work import Kind, Work

GLANCE = 32
"""Iterations after which rows that others may join report, so that who decides about them knows their lengths."""


class SimulatedPipeline:
    """All rows of one device. `begin` says what comes next and how long it takes, `finish` that it is done.

    Orders are carried out between the two pairs, never while work is under way.
    """

    def __init__(self, batch: SimulatedBatch, cost: Cost, store: SimulatedStore, max_prefill_tokens: int) -> None:
        self.batch = batch
        self.outbox = Outbox()
        """What there is to report. Whoever reports it puts a new one in its place."""
        self._cost = cost
        self._store = store
        self._max_prefill_tokens = max_prefill_tokens
        self._rows: dict[RowId, SimulatedRow] = {}
        self._lobby = SimulatedQueues()
        self._closed: Group | None = None  # whose rows the batch is running, if nobody may join them
        self._admitted = 0
        self._prefilled = False  # whether the last work was a chunk of prefill
        self._begun: tuple[RowId, ...] = ()  # rows whose prompts begin to be read in the work under way
        self._joining: list[SimulatedRow] = []  # rows that enter by shape in the work under way
        self._copying = 0.0  # seconds of copies that the next work begins with
        self._glance = 0  # the batch's iteration as of which all rows were reported

    @property
    def idle(self) -> bool:
        return not self._rows

    @property
    def closed(self) -> bool:
        """Whether a batch runs that nobody may join."""
        return self._closed is not None

    def shape(self) -> BatchShape:
        window = self.batch.window
        return BatchShape(len(self.batch), len(self._lobby.staged), 0, window, window, self.batch.capacity_tokens)

    # Orders

    def admit(self, specs: Iterable[RowSpec], terms: Terms) -> None:
        """Take in rows on the given terms; those that were handed back before go on where they stopped."""
        group, unread = Group(terms), []
        for spec in specs:
            row = self._admitted_row(spec, group)
            if row.in_host_memory:
                self._lobby.stage(row)
            elif terms.entry is Entry.SHAPE:
                self._lobby.enter(row)
            else:
                unread.append(row)
        group.unread.update(row.row_id for row in unread)
        together = terms.prefill_together or not terms.closed
        for part in (
            [unread] if together else similar_lengths(unread, lambda row: row.context, self._max_prefill_tokens)
        ):
            self._lobby.read(part)

    def cancel(self, row_ids: Iterable[RowId]) -> None:
        """Drop rows wherever they are; those that are gone already are ignored."""
        for row_id in row_ids:
            self._store.take(row_id)
            if row_id in self._rows:
                self._forget(self._rows[row_id])

    def pause(self, row_ids: Iterable[RowId]) -> None:
        """Hand rows back; those that have ended or are gone are ignored."""
        here = [self._rows[row_id] for row_id in dict.fromkeys(row_ids) if row_id in self._rows]
        self._hand_back([row for row in here if not row.ended], Cause.PAUSE)

    def _admitted_row(self, spec: RowSpec, group: Group) -> SimulatedRow:
        row = self._rows[spec.row_id] = SimulatedRow(spec, (spec.priority, self._admitted), group)
        group.open.add(spec.row_id)
        self._admitted += 1
        kept = self._store.take(spec.row_id)
        if kept is not None:
            row.generated = row.told = kept.generated
            row.in_host_memory = kept.has_kv
        return row

    # What comes next

    def begin(self) -> Work | None:
        """What comes next; None when there is nothing to do."""
        while self._rows:
            before = self._progress()
            work = self._read() if self._prefill_is_next() else self._run()
            if work is not None:
                return work
            if before == self._progress():
                raise RuntimeError(f"a simulated device is stuck with {len(self._rows)} rows: a fault of the simulator")
        return None

    def finish(self, work: Work) -> None:
        """Book what was begun last, or as many iterations of it as were done."""
        self.outbox.begun, self._begun = self._begun, ()
        if work.kind is Kind.PREFILL:
            self._finish_chunk()
        elif work.kind is Kind.ENTER:
            self._finish_entry()
        else:
            self._finish_decode(work.iterations)

    def _progress(self) -> tuple[object, ...]:
        """What changes whenever a pass of `begin` gets on."""
        return len(self._rows), len(self._lobby.staged), len(self.batch), self._prefilled

    # Prefill

    def _prefill_is_next(self) -> bool:
        """Prefill and decode alternate while both are wanted, so that neither waits for more than one step."""
        others = bool(self.batch.rows) or self._next_to_join() is not None
        self._prefilled = self._prefill_is_wanted() and not (self._prefilled and others)
        return self._prefilled

    def _prefill_is_wanted(self) -> bool:
        return self._lobby.prefill is not None or self._next_to_read() is not None

    def _next_to_read(self) -> list[SimulatedRow] | None:
        """The rows to prefill next. Those of a closed batch wait until no other rows run or are ahead of them."""
        return next((rows for rows in self._lobby.unread if self._may_read(rows[0])), None)

    def _may_read(self, row: SimulatedRow) -> bool:
        if not row.group.terms.closed:
            return True
        best = next(iter(self._lobby.staged), row)
        first = best.group is row.group or row.rank < best.rank
        return first and all(other.group is row.group for other in self.batch.rows.values())

    def _read(self) -> Work:
        """A chunk of the prompts under way, else of the next ones."""
        if self._lobby.prefill is None:
            rows = self._next_to_read() or []
            self._lobby.unread.remove(rows)
            self._lobby.prefill = SimulatedPrefill(rows, self._max_prefill_tokens)
            self._begun = tuple(row.row_id for row in rows)
        return _indivisible(Kind.PREFILL, self._lobby.prefill.seconds(self._cost))

    def _finish_chunk(self) -> None:
        assert self._lobby.prefill is not None, "no order is carried out while work is under way"
        ended, tally = self._lobby.prefill.advance()
        self.outbox.tally += tally + Tally(generated=len(ended))
        if not self._lobby.prefill.rows:
            self._lobby.prefill = None
        for row in ended:
            row.generated += 1
            row.group.unread.discard(row.row_id)
            self._lobby.stage(row)
        for row in ended:
            self._tell(row)

    # Into the batch

    def _run(self) -> Work | None:
        """Let rows join, then one entry or some iterations."""
        self._refill()
        self._give_up_stranded()
        self._joining = self._next_to_enter()
        if self._joining:
            return self._enter()
        while self.batch.rows and self.batch.room < 1:
            self._overflow()
        return self._decode() if self.batch.rows else None

    def _refill(self) -> None:
        """Embed staged rows while they fit, best rank first; none overtakes a better one.

        A row of better priority than running ones takes their place, the worst first (Baton's preemption).
        """
        while (best := self._next_to_join()) is not None:
            if self._fits(best):
                self._join(best)
            elif self.batch.rows and not self.batch.live:  # of a closed batch: nothing is lost by running them no more
                for row in list(self.batch.rows.values()):
                    self._forget(row)
            elif self._fits(best, beside=self._rivals(best.rank)):
                self._extract_worst()
            else:
                return

    def _fits(self, row: SimulatedRow, beside: Collection[SimulatedRow] | None = None) -> bool:
        """A closed batch was measured to fit by whoever put it together: its rows need no headroom."""
        return self.batch.fits(row.kv_length, lasting=not row.group.terms.closed, beside=beside)

    def _join(self, row: SimulatedRow) -> None:
        self._lobby.staged.remove(row)
        if row.in_host_memory:
            self._copying += self._cost.copy(row.kv_length)
            row.in_host_memory = False
        self.batch.insert(row)
        if row.group.terms.closed:
            self._closed = row.group

    def _next_to_join(self) -> SimulatedRow | None:
        """The best staged row that may: of a closed batch that runs, or can start to, its own rows alone."""
        staged = self._lobby.staged
        if self._closed is not None:
            return next((row for row in staged if row.group is self._closed), None)
        if staged and staged[0].group.terms.closed and (self.batch.rows or not staged[0].group.ready):
            return None
        return staged[0] if staged and not self._enters_before(staged[0].rank) else None

    def _enters_before(self, rank: Rank) -> bool:
        """Whether a row of better priority can enter by shape now: a staged one that joined would make way for it."""
        best = next(iter(self._may_enter()), None)
        if best is None or best.rank[0] >= rank[0]:
            return False
        return self.batch.admits([best.context], beside=self._rivals(best.rank))

    def _rivals(self, rank: Rank) -> list[SimulatedRow]:
        """Running rows that do not make way for a row of this rank. Beside these it is asked whether it may come in, by
        the same measure as beside all: else rows would make way for one that then stays out.
        """
        return [row for row in self.batch.rows.values() if row.rank[0] <= rank[0]]

    def _give_up_stranded(self) -> None:
        """A row that does not fit though the device is empty never will, and must not block those behind it."""
        if self.batch.rows:
            return
        staged = self._next_to_join()
        if staged is not None and not self._fits(staged):
            self._fail(staged)
        entering = self._may_enter()
        if staged is None and entering and not self.batch.admits([entering[0].context]):
            self._fail(entering[0])

    def _may_enter(self) -> list[SimulatedRow]:
        """The rows to enter by shape that the running batch lets in, best first."""
        return [row for row in self._lobby.entering if self._closed in (None, row.group)]

    def _next_to_enter(self) -> list[SimulatedRow]:
        """The best rows that there is room for now; one of better priority than running ones takes their place."""
        joining: list[SimulatedRow] = []
        lengths: list[int] = []
        for row in self._may_enter():
            lengths.append(row.context)
            if not joining and self.batch.admits(lengths, beside=self._rivals(row.rank)):
                while not self.batch.admits(lengths):
                    self._extract_worst()
            if not self.batch.admits(lengths):
                break
            joining.append(row)
        return joining

    def _enter(self) -> Work:
        self._begun = tuple(row.row_id for row in self._joining)
        rows, width = len(self.batch) + len(self._joining), max(row.context for row in self._joining)
        return _indivisible(Kind.ENTER, self._copied() + self._cost.prefill(rows, width))

    def _finish_entry(self) -> None:
        joining, running, live = self._joining, len(self.batch), self.batch.live
        read = sum(row.context for row in joining)
        cells = (running + len(joining)) * max(row.context for row in joining)
        pad = cells - read - running
        self.outbox.tally += Tally(prompt=read, pad=pad, generated=live + len(joining), invalid=running - live)
        for row in joining:
            self._lobby.entering.remove(row)
        self.batch.enter(joining)
        for row in joining:
            self._tell(row)
        self._look()

    # Iterations

    def _decode(self) -> Work:
        rows, window, copying = len(self.batch), self.batch.window, self._copied()
        return Work(Kind.DECODE, min(self._bounds()), lambda count: copying + self._cost.decode(rows, window, count))

    def _copied(self) -> float:
        """Seconds of the copies that come first; they are charged once."""
        seconds, self._copying = self._copying, 0.0
        return seconds

    def _bounds(self) -> Iterator[int]:
        """Iterations until something must be looked at."""
        yield self.batch.room
        if self._prefill_is_wanted():
            yield 1
        until_end = self.batch.until_next_end
        if until_end is not None:
            yield until_end
        group = self._closed
        if group is None:
            yield max(1, self._glance + GLANCE - self.batch.iterations)
        elif group.terms.iterations is not None:
            yield max(1, group.terms.iterations - group.iterations)

    def _finish_decode(self, iterations: int) -> None:
        group = self._closed
        self.outbox.tally += self.batch.tally(iterations)
        self.batch.step(iterations)
        self._look()
        if group is not None:
            group.iterations += iterations
            if group.slice_is_over:
                self._hand_back(self._open(group), Cause.SLICE)

    def _look(self) -> None:
        """Report rows that have ended, and from time to time all that others may join."""
        for row in self.batch.just_ended():
            self._tell(row)
        if self._closed is None and self.batch.iterations - self._glance >= GLANCE:
            self._glance = self.batch.iterations
            for row in list(self.batch.rows.values()):
                self._tell(row)

    # Room

    def _overflow(self) -> None:
        """Rows outgrow the device: the batch is split (Magnus, section III-C) or scaled down (Baton, section 4.2)."""
        group = self._closed
        if group is not None and group.terms.overflow is Overflow.SPLIT and len(group.open) > 1:
            self._hand_back(self._open(group), Cause.OVERFLOW)
        else:
            self._extract_worst()

    def _extract_worst(self) -> None:
        worst = max(self.batch.rows.values(), key=_rank)
        if worst.ended:
            self._forget(worst)
            return
        self.batch.remove(worst)
        worst.in_host_memory = True
        self._lobby.stage(worst)

    def _open(self, group: Group) -> list[SimulatedRow]:
        return [row for row in self._rows.values() if row.row_id in group.open]

    # Out

    def _tell(self, row: SimulatedRow) -> None:
        """Report what is new of a row; its last token makes it leave, as its terms have it."""
        self._settle(row)
        if row.generated > row.told:
            self.outbox.updates.append(row.tell())
            if row.ended:
                self._end(row)

    def _settle(self, row: SimulatedRow) -> None:
        if row.row_id in self.batch.rows:
            self.batch.settle(row)

    def _end(self, row: SimulatedRow) -> None:
        """A row has its last token: it leaves, but in a closed batch keeps its slot until the last one has ended."""
        row.group.open.discard(row.row_id)
        if row.group is not self._closed:
            self._forget(row)
        elif not row.group.open:
            self._dissolve(row.group)

    def _fail(self, row: SimulatedRow) -> None:
        error = "the row outgrows the simulated device"
        self.outbox.updates.append(RowUpdate(row.row_id, finish_reason=FinishReason.ERROR, error=error))
        self._forget(row)

    def _hand_back(self, rows: list[SimulatedRow], cause: Cause) -> None:
        """Let rows go before their end."""
        dropped: list[RowId] = []
        for row in rows:
            self._tell(row)
            has_kv = row.row_id in self.batch.rows or row in self._lobby.staged
            kept = has_kv and row.context in row.group.terms.keep_kv
            if not kept:
                dropped.append(row.row_id)
            self._store.keep(row.row_id, Kept(row.generated, kept))
            self._forget(row)
        if rows:
            self.outbox.handed_back.append(HandedBack(tuple(row.row_id for row in rows), cause, tuple(dropped)))

    def _forget(self, row: SimulatedRow) -> None:
        """Nothing is left of a row, and when it was the last that its closed batch waited for, of the batch."""
        del self._rows[row.row_id]
        row.group.open.discard(row.row_id)
        if row.row_id in self.batch.rows:
            self.batch.remove(row)
        else:
            self._lobby.drop(row)
        if row.group is self._closed and not row.group.open:
            self._dissolve(row.group)

    def _dissolve(self, group: Group) -> None:
        """The last row of a closed batch has gone; those that had ended before give their slots back."""
        self._closed = None
        for row in [row for row in self._rows.values() if row.group is group]:
            self._forget(row)

    def check(self) -> None:
        """Assert that every row is in exactly one place and that all fit; for tests."""
        places = [row.row_id for row in (*self.batch.rows.values(), *self._lobby)]
        assert sorted(places) == sorted(self._rows)
        assert self._closed is None or self._closed.open
        assert len(self.batch) * self.batch.window <= self.batch.capacity_tokens


def _rank(row: SimulatedRow) -> Rank:
    return row.rank


def _indivisible(kind: Kind, seconds: float) -> Work:
    return Work(kind, 1, lambda _: seconds)
