"""The way of rows through a device: waiting, in prefill, staged, running, gone. One turn is one step of it.

Synchronous and single-threaded; knows no thread, no clock and no strategy. Rows are ranked by priority, then by the
order in which they were admitted: when memory runs short, the worst is taken out first, and staged rows join in order.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill
from engine.forward.prefill_stream import PrefillStream
from engine.group import Group
from engine.kv.arena import ArenaFull
from engine.kv.host_store import HostStore
from engine.kv.row_kv import RowKv
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
from engine.queues import Queues, Staged
from engine.row import Choice, Rank, Row
from engine.sampling import sampler as sampling
from engine.sampling.grammar import GrammarFault, Grammars, Matcher
from engine.similar import similar_lengths
from models.network.loader import LoadedModel
from models.text import Text

log = logging.getLogger(__name__)

RELIEF = 0.9
"""What is left of the budget for K and V after the device ran out of memory."""

MOST_SETBACKS = 8
"""Times a prompt is read again for lack of memory: enough to halve a large group down to one row."""


class Pipeline:
    """All rows of one device. `turn` is one step: a chunk of prefill, or refilled slots and a decode iteration."""

    def __init__(
        self,
        model: LoadedModel,
        text: Text,
        batch: RunningBatch,
        *,
        max_prefill_tokens: int,
        store: HostStore | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._model = model
        self._text = text
        self._max_prefill_tokens = max_prefill_tokens
        self._store = HostStore() if store is None else store
        self._grammars = Grammars(text, model.vocab_size, model.end_token_ids) if grammars is None else grammars
        self._rows: dict[RowId, Row] = {}
        self._lobby = Queues()
        self._lane = PrefillStream(model.device)
        self._reading = False  # whether a chunk of prefill is under way in the lane
        self._closed: Group | None = None  # whose rows the batch is running, if nobody may join them
        self._admitted = 0
        self._prefilled = False  # whether the last turn was a chunk of prefill
        self._handed_back: list[HandedBack] = []
        self.batch = batch
        self.begun: tuple[RowId, ...] = ()
        """Rows whose prompt began to be read in the latest turn."""
        self.extracted: tuple[RowId, ...] = ()
        """Rows that the latest turn took out of the batch to host memory."""
        self.tally = Tally()
        """What the latest turn computed."""

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing, and nothing is left to report."""
        return not (self._lobby or self.batch.rows or self._handed_back)

    def admit(self, specs: Iterable[RowSpec], terms: Terms = Terms()) -> None:  # noqa: B008 (frozen)
        """Take in rows on the given terms; those that were handed back before go on where they stopped."""
        group, unread = Group(terms), []
        for spec in specs:
            row, kv = self._admitted_row(spec, group)
            if kv is not None:
                self._lobby.stage(row, kv)
            elif terms.entry is Entry.SHAPE and not terms.closed and row.sampling.prompt_logprobs is None:
                self._lobby.enter(row)
            else:  # there is nothing to enter into yet; or the prompt is to be scored, which only prefill does
                unread.append(row)
        group.unread.update(row.row_id for row in unread)
        together = terms.prefill_together or not terms.closed
        for part in [unread] if together else similar_lengths(unread, _length, self._max_prefill_tokens):
            self._lobby.read(part)

    def cancel(self, row_ids: Iterable[RowId]) -> None:
        """Drop rows wherever they are, and free what they held. Rows that are gone already are ignored."""
        for row_id in row_ids:
            self._store.take(row_id)
            if row_id in self._rows:
                self._forget(self._rows[row_id])

    def pause(self, row_ids: Iterable[RowId]) -> None:
        """Hand rows back in the next report; those that have ended or are gone are ignored."""
        here = [self._rows[row_id] for row_id in dict.fromkeys(row_ids) if row_id in self._rows]
        self._hand_back([row for row in here if not row.ended], Cause.PAUSE)

    def turn(self) -> list[RowUpdate]:
        """One step; returns what it brought to each row, so that no token waits for another step to end."""
        self.begun, self.extracted, self.tally = (), (), Tally()
        updates = self._read()
        if updates is not None:
            return updates
        self._refill()
        return self._give_up_stranded() or self._enter() or self._decode()

    def take_handed_back(self) -> tuple[HandedBack, ...]:
        """Rows that were let go since the last call."""
        handed_back, self._handed_back = tuple(self._handed_back), []
        return handed_back

    def salvage(self) -> tuple[RowId, ...]:
        """Put by what can go on elsewhere when this device is lost: rows that have begun and were not running, with
        their K and V where these are in host memory. What runs may have tokens that were never reported.
        """
        in_host_memory = {one.row: one.kv for one in self._lobby.staged if not one.kv.keys.is_cuda}
        safe = [row for row in self._rows.values() if row.generated and row not in self.batch.rows]
        for row in safe:
            self._store.keep(row, in_host_memory.get(row))
        unreported = [row_id for handed_back in self._handed_back for row_id in handed_back.row_ids]
        return (*unreported, *(row.row_id for row in safe))

    def leave_store(self) -> None:
        """Share no host memory with other devices any more. May be called from any thread: rows that were meant for
        this device are theirs now, and an old copy put by here must not take the place of the new one.
        """
        self._store = HostStore()

    def shape(self) -> BatchShape:
        return self.batch.shape(len(self._lobby.staged))

    def _admitted_row(self, spec: RowSpec, group: Group) -> tuple[Row, RowKv | None]:
        kept = self._store.take(spec.row_id)
        row = self._new_row(spec) if kept is None else kept.row
        row.rank, row.group = (spec.priority, self._admitted), group
        group.open.add(row.row_id)
        self._admitted += 1
        self._rows[row.row_id] = row
        return row, None if kept is None else kept.kv

    def _new_row(self, spec: RowSpec) -> Row:
        grammar = spec.sampling.grammar
        matcher = None if grammar is None else Matcher(self._grammars, grammar)
        return Row(spec, self._text, self._model.end_token_ids, matcher)

    # Prefill

    def _read(self) -> list[RowUpdate] | None:
        """A chunk of prefill, if it is the turn of one: what it brought; None when there is time for a decode step."""
        if not self._reading:
            if not self._prefill_is_next():
                return None
            failed = self._launch_chunk()
            if failed is not None:
                return failed
        if self._lane.done or not self._can_decode():
            self._lane.wait()
            return self._collect_chunk()
        return None

    def _prefill_is_next(self) -> bool:
        """Prefill and decode alternate while both are wanted, so that neither waits for more than one step."""
        wanted = self._lobby.prefill is not None or self._next_to_read() is not None
        self._prefilled = wanted and not (self._prefilled and self._can_decode())
        return self._prefilled

    def _can_decode(self) -> bool:
        return bool(self.batch.rows) or self._next_to_join() is not None

    def _next_to_read(self) -> list[Row] | None:
        """The rows to prefill next. Those of a closed batch wait until the one before it has ended."""
        for rows in self._lobby.unread:
            if not rows[0].group.terms.closed or self._is_next(rows):
                return rows
        return None

    def _is_next(self, rows: list[Row]) -> bool:
        """Whether no other group runs, and none that waits for a slot comes before these rows'."""
        group, staged = rows[0].group, self._lobby.staged[:1]
        if any(row.group is not group for row in self.batch.rows):
            return False
        return all(one.row.group is group or rows[0].rank < one.rank for one in staged)

    def _launch_chunk(self) -> list[RowUpdate] | None:
        """Begin the next chunk in the lane; returns what became of its rows when it cannot be begun."""
        rows = (self._next_to_read() or []) if self._lobby.prefill is None else self._lobby.prefill.rows
        try:
            with self._lane.working():
                prefill = self._begun_prefill(rows)
                prefill.launch(self._max_prefill_tokens)
        except torch.OutOfMemoryError as error:
            return self._prefill_smaller(list(rows), error)
        except Exception as error:
            self._lobby.prefill = None
            return self._fail(rows, error)
        self.tally = prefill.tally
        self._reading = True
        return None

    def _collect_chunk(self) -> list[RowUpdate]:
        """Stage the rows whose prompts have been read, and choose their first tokens."""
        self._reading = False
        prefill = self._lobby.prefill
        if prefill is None:  # its last row was cancelled while the chunk was under way
            return []
        ended = prefill.collect()
        if not prefill.rows:
            self._lobby.prefill = None
        for done in ended:
            self._lane.hand_over(done.kv.keys, done.kv.values, done.logits)
            self._lobby.stage(done.row, done.kv)
            done.row.group.unread.discard(done.row.row_id)
        logits = [done.logits for done in ended]
        return self._choose([done.row for done in ended], torch.stack(logits)) if ended else []

    def _begun_prefill(self, rows: list[Row]) -> Prefill:
        """The prefill under way, else one of the given rows."""
        if self._lobby.prefill is None:
            self._lobby.prefill = Prefill(self._model, rows)
            self._lobby.unread.remove(rows)
            self.begun = tuple(row.row_id for row in rows)
        return self._lobby.prefill

    def _prefill_smaller(self, rows: list[Row], error: torch.OutOfMemoryError) -> list[RowUpdate]:
        """Begin a group's unfinished prompts again in two halves; a single one after memory was given back."""
        self._lobby.prefill = None
        if rows in self._lobby.unread:
            self._lobby.unread.remove(rows)
        if len(rows) == 1:
            self._relieve(error)
        lost, left = _set_back(rows)
        half = (len(left) + 1) // 2
        self._lobby.read(left[:half])
        self._lobby.read(left[half:])
        return self._fail(lost, error)

    # Into the batch

    def _refill(self) -> None:
        """Embed staged rows while they fit, best rank first; none overtakes a better one.

        A row of better priority than running ones takes their place, the worst first (Baton's preemption).
        """
        try:
            while (best := self._next_to_join()) is not None:
                if self._fits(best):
                    self._join(best)
                elif self._only_ended_rows_run():
                    for row in list(self.batch.rows):
                        self._forget(row)
                elif self._fits(best, beside=self._rivals(best.rank)):
                    self._extract_worst()
                else:
                    best.kv = self._lane.fetched(best.kv)  # it is next, so that its copy need not wait for the slot
                    return
        except torch.OutOfMemoryError as error:
            self._relieve(error)

    def _fits(self, staged: Staged, beside: Collection[Row] | None = None) -> bool:
        """A closed batch was measured to fit by whoever put it together: its rows need no headroom."""
        return self.batch.fits(staged.kv.length, lasting=not staged.row.group.terms.closed, beside=beside)

    def _join(self, staged: Staged) -> None:
        self.batch.insert(staged.row, staged.kv, lasting=not staged.row.group.terms.closed)
        self._lobby.staged.remove(staged)
        self._store.give_back(staged.row.row_id)
        if staged.row.group.terms.closed:
            self._closed = staged.row.group

    def _next_to_join(self) -> Staged | None:
        """The best staged row that may: of a closed batch that runs, or can start to, its own rows alone."""
        staged = self._lobby.staged
        if self._closed is not None:
            return next((one for one in staged if one.row.group is self._closed), None)
        if staged and staged[0].row.group.terms.closed and (self.batch.rows or not staged[0].row.group.ready):
            return None
        return staged[0] if staged and not self._enters_before(staged[0].rank) else None

    def _enters_before(self, rank: Rank) -> bool:
        """Whether a row of better priority can enter by shape now: a staged one that joined would make way for it."""
        best = next(iter(self._lobby.entering), None)
        if best is None or best.rank[0] >= rank[0]:
            return False
        return self.batch.admits([len(best.context)], beside=self._rivals(best.rank))

    def _only_ended_rows_run(self) -> bool:
        return bool(self.batch.rows) and all(row.ended for row in self.batch.rows)

    def _rivals(self, rank: Rank) -> frozenset[Row]:
        """Running rows that do not make way for a row of this rank. Beside these it is asked whether it may come in, by
        the same measure as beside all: else rows would make way for one that then stays out.
        """
        return frozenset(row for row in self.batch.rows if row.rank[0] <= rank[0])

    def _give_up_stranded(self) -> list[RowUpdate]:
        """A row that does not fit though the device is empty never will, and must not block those behind it."""
        if self.batch.rows:
            return []
        staged = self._next_to_join()
        if staged is not None:
            stranded = [] if self._fits(staged) else [staged.row]
        else:
            stranded = [row for row in self._lobby.entering[:1] if not self.batch.admits([len(row.context)])]
        return self._fail(stranded, MemoryError("the row outgrows the device"))

    def _enter(self) -> list[RowUpdate]:
        """Let rows enter by shape as far as there is room, in the same step as those that run."""
        entering = self._next_to_enter()
        if not entering:
            return []
        fed = [len(row.context) for row in entering]
        try:
            logits = self.batch.enter(entering)
        except torch.OutOfMemoryError as error:
            self._relieve(error)
            lost, _ = _set_back(entering)
            return self._fail(lost, error)
        except Exception as error:
            return self._fail([*entering, *self.batch.rows], error)
        del self._lobby.entering[: len(entering)]
        self.begun = tuple(row.row_id for row in entering)
        running = len(self.batch.rows) - len(entering)
        self.tally = Tally(prompt=sum(fed), pad=max(fed) * len(self.batch.rows) - sum(fed) - running)
        return self._choose(list(self.batch.rows), logits)

    def _next_to_enter(self) -> list[Row]:
        """The best rows that there is room for now; one of better priority than running ones takes their place."""
        entering: list[Row] = []
        lengths: list[int] = []
        for row in self._lobby.entering if self._closed is None else ():
            lengths.append(len(row.context))
            if not entering and self.batch.admits(lengths, beside=self._rivals(row.rank)):
                while not self.batch.admits(lengths):
                    self._extract_worst()
            if not self.batch.admits(lengths):
                break
            entering.append(row)
        return entering

    # A step

    def _decode(self) -> list[RowUpdate]:
        try:
            logits = self._step()
        except torch.OutOfMemoryError as error:
            self._relieve(error)
            return []
        except Exception as error:
            return self._fail(list(self.batch.rows), error)
        if logits is None:
            return []
        self.tally += self.batch.reads()
        updates = self._choose(list(self.batch.rows), logits)
        self._end_slice()
        return updates

    def _step(self) -> Tensor | None:
        """A decode step, once there is room for it; None when no row is left."""
        while self.batch.rows:
            try:
                return self.batch.step()
            except ArenaFull:
                self._overflow()
        return None

    def _end_slice(self) -> None:
        group = self._closed
        if group is not None:
            group.iterations += 1
            if group.slice_is_over:
                self._hand_back(self._open_rows(group), Cause.SLICE)

    # Room

    def _overflow(self) -> None:
        """Rows outgrow the device: the batch is split (Magnus, section III-C) or scaled down (Baton, section 4.2)."""
        group = self._closed
        if group is not None and group.terms.overflow is Overflow.SPLIT and len(group.open) > 1:
            self._hand_back(self._open_rows(group), Cause.OVERFLOW)
        else:
            self._extract_worst()

    def _open_rows(self, group: Group) -> list[Row]:
        return [row for row in self._rows.values() if row.row_id in group.open]

    def _extract_worst(self) -> None:
        worst = max(self.batch.rows, key=lambda row: row.rank)
        if worst.ended:
            self._forget(worst)
        elif (kv := self._to_host(worst)) is None:
            self._hand_back([worst], Cause.OVERFLOW)
        else:
            self._lobby.stage(worst, kv)
            self.extracted += (worst.row_id,)

    def _relieve(self, error: torch.OutOfMemoryError) -> None:
        """Take every running row out and go on with a smaller budget; the rows come back as they fit."""
        arena = self.batch.arena
        smaller = int(arena.capacity_tokens * RELIEF)
        log.warning("out of memory: K and V get %d tokens instead of %d (%s)", smaller, arena.capacity_tokens, error)
        while self.batch.rows:
            self._overflow()
        arena.give_back(max(1, smaller))

    # Tokens

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[RowUpdate]:
        """Sample each row's next token and let the rows take them; rows that end leave."""
        live = [place for place, row in enumerate(rows) if not row.ended]
        self.tally += Tally(generated=len(live), invalid=len(rows) - len(live))
        if len(live) < len(rows):
            rows, logits = [rows[place] for place in live], logits[live]
        try:
            choices = sampling.sample(rows, logits)
        except Exception as error:
            return self._fail(rows, error)
        return [self._accept(row, choice) for row, choice in zip(rows, choices, strict=True)]

    def _accept(self, row: Row, choice: Choice | sampling.Unchosen) -> RowUpdate:
        if not isinstance(choice, Choice):
            return self._fail([row], choice, wipe=isinstance(choice, sampling.NonFiniteLogits))[0]
        try:
            update = row.accept(choice)
        except Exception as error:
            return self._fail([row], error)[0]
        if update.finish_reason is not None:
            self._end(row)
        return update

    # Out

    def _end(self, row: Row) -> None:
        """A row has its last token: it leaves, but in a closed batch keeps its slot until the last one has ended."""
        row.group.open.discard(row.row_id)
        if row.group is not self._closed:
            self._forget(row)
        elif not row.group.open:
            self._dissolve(row.group)

    def _fail(self, rows: Iterable[Row], error: Exception, *, wipe: bool = False) -> list[RowUpdate]:
        """End rows that cannot go on; the others never notice."""
        failed = [row for row in rows if not row.ended]
        if failed:
            log.error("rows failed: %s", error, exc_info=error)
        for row in failed:
            self._forget(row, wipe=wipe)
        return [RowUpdate(row.row_id, finish_reason=FinishReason.ERROR, error=_describe(error)) for row in failed]

    def _hand_back(self, rows: Iterable[Row], cause: Cause) -> None:
        """Let rows go before their end; those that run from the last place on, so that none has to be moved."""
        leaving = list(rows)
        dropped: set[RowId] = set()
        for row in sorted(leaving, key=lambda row: -self.batch.rows.index(row) if row in self.batch.rows else 0):
            kv = self._to_host(row) if _length(row) in row.group.terms.keep_kv else None
            self._store.keep(row, kv)
            if kv is None:
                dropped.add(row.row_id)
            if not row.generated:
                row.prompt_logprobs = None  # what was read of the prompt will be read again
            self._forget(row)
        if leaving:
            row_ids = tuple(row.row_id for row in leaving)
            self._handed_back.append(HandedBack(row_ids, cause, tuple(one for one in row_ids if one in dropped)))

    def _to_host(self, row: Row) -> RowKv | None:
        """A row's K and V in host memory, for which a running row leaves the batch. None where there are none, or no
        memory for them: the row is then to be handed back, and its tokens are read again.
        """
        waiting = self._lobby.kv_of(row)
        if waiting is None and row not in self.batch.rows:
            return None
        if not self._store.lend(row, row.kv_length * self._model.kv.bytes_per_token):
            return None
        try:
            return self.batch.extract(row) if waiting is None else waiting.on_host()
        except RuntimeError as error:  # what torch raises for any lack of memory, the host's too
            log.warning("K and V of a row could not be copied to host memory, so they are computed again: %s", error)
            return None

    def _forget(self, row: Row, *, wipe: bool = False) -> None:
        """Nothing is left of a row, and when it was the last that its closed batch waited for, of the batch."""
        del self._rows[row.row_id]
        self._store.give_back(row.row_id)
        row.group.open.discard(row.row_id)
        if row in self.batch.rows:
            self.batch.remove(row, wipe=wipe)
        else:
            self._lane.wait()  # what is dropped may be in the middle of a chunk
            self._lobby.drop(row.row_id)
        if row.group is self._closed and not row.group.open:
            self._dissolve(row.group)

    def _dissolve(self, group: Group) -> None:
        """The last row of a closed batch has gone; those that had ended before give their slots back."""
        self._closed = None
        for row in [row for row in self._rows.values() if row.group is group]:
            self._forget(row)

    def check(self) -> None:
        """Assert that every row is in exactly one place; for tests."""
        self.batch.check()
        places = [row.row_id for row in (*self.batch.rows, *self._lobby)]
        assert sorted(places) == sorted(self._rows)
        assert self._closed is None or self._closed.open


def _length(row: Row) -> int:
    return len(row.context)


def _set_back(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Count a failure to read these prompts; returns those that failed too often, and the others, best first."""
    lost: list[Row] = []
    left: list[Row] = []
    for row in sorted(rows, key=lambda row: row.rank):
        row.setbacks += 1
        row.prompt_logprobs = None
        (left if row.setbacks <= MOST_SETBACKS else lost).append(row)
    return lost, left


def _describe(error: Exception) -> str:
    """What a client may know of a fault: its kind, not its details, which are in the log."""
    if isinstance(error, sampling.NonFiniteLogits):
        return "the model computed a value that is not a finite number"
    if isinstance(error, GrammarFault):
        return str(error)
    return f"the engine failed on this request ({type(error).__name__})"
