"""The way of rows through a device: waiting, in prefill, staged, running, gone. One turn is one step of it.

Synchronous and single-threaded; knows no thread, no clock and no strategy. Rows are ranked by the order in which
they were admitted: when memory runs short, the last admitted is taken out first, and staged rows return in order.
"""

from __future__ import annotations

import bisect
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine import sampling
from engine.arena import ArenaFull, RowKv
from engine.batch import RunningBatch
from engine.messages import BatchShape, FinishReason, RowId, RowSpec, RowUpdate
from engine.prefill import Prefill
from engine.row import Choice, Row
from models.loader import LoadedModel
from models.text import Text

log = logging.getLogger(__name__)

RELIEF = 0.9
"""What is left of the budget for K and V after the device ran out of memory."""

MOST_SETBACKS = 8
"""Times a prompt's prefill is begun again for lack of memory: enough to halve a large group down to one row."""


@dataclass(order=True, slots=True)
class Staged:
    """A row out of the batch with its K and V: just prefilled, or taken out for lack of memory."""

    rank: int
    row: Row = field(compare=False)
    kv: RowKv = field(compare=False)


class Pipeline:
    """All rows of one device. `turn` is one step: a chunk of prefill, or refilled slots and a decode iteration."""

    def __init__(self, model: LoadedModel, text: Text, batch: RunningBatch, *, max_prefill_tokens: int) -> None:
        self._model = model
        self._text = text
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[list[Row]] = deque()  # admitted groups, not begun
        self._prefill: Prefill | None = None
        self._staged: list[Staged] = []  # sorted by rank
        self._ranks: dict[RowId, int] = {}
        self._admitted = 0
        self.begun: tuple[RowId, ...] = ()
        """Rows whose prefill began in the latest turn."""
        self._prefilled = False  # whether the last turn was a chunk of prefill
        self.batch = batch

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing."""
        return not (self._waiting or self._prefill or self._staged or self.batch.rows)

    def admit(self, specs: Iterable[RowSpec]) -> None:
        """Take in rows that shall be prefilled as one group."""
        rows = [Row(spec, self._text, self._model.end_token_ids) for spec in specs]
        for row in rows:
            self._ranks[row.row_id] = self._admitted
            self._admitted += 1
        self._waiting.append(rows)

    def cancel(self, row_ids: Iterable[RowId]) -> None:
        """Drop rows wherever they are, and free what they held. Rows that are gone already are ignored."""
        for row_id in row_ids:
            if self._ranks.pop(row_id, None) is not None:
                self._drop(row_id)

    def turn(self) -> list[RowUpdate]:
        """One step; returns what it brought to each row, so that no token waits for another step to end."""
        self.begun = ()
        if self._prefill_is_next():
            return self._prefill_chunk()
        self._refill()
        return self._give_up_stranded() or self._decode()

    def _prefill_is_next(self) -> bool:
        """Prefill and decode alternate while both are wanted, so that neither waits for more than one step."""
        wanted = self._prefill is not None or bool(self._waiting)
        self._prefilled = wanted and not (self._prefilled and (self._staged or self.batch.rows))
        return self._prefilled

    def shape(self) -> BatchShape:
        return self.batch.shape(len(self._staged))

    # Stages

    def _prefill_chunk(self) -> list[RowUpdate]:
        rows = self._prefill.rows if self._prefill is not None else self._waiting[0]
        try:
            group = self._group()
            ended = group.advance(self._max_prefill_tokens)
        except torch.OutOfMemoryError as error:
            return self._prefill_smaller(rows, error)
        except Exception as error:
            self._prefill = None
            return self._fail(rows, error)
        if not group.rows:
            self._prefill = None
        if not ended:
            return []
        for done in ended:
            bisect.insort(self._staged, Staged(self._ranks[done.row.row_id], done.row, done.kv))
        return self._choose([done.row for done in ended], torch.stack([done.logits for done in ended]))

    def _group(self) -> Prefill:
        """The group under way, else the next that waits."""
        if self._prefill is None:
            self._prefill = Prefill(self._model, self._waiting[0])
            self.begun = tuple(row.row_id for row in self._waiting.popleft())
        return self._prefill

    def _refill(self) -> None:
        """Embed staged rows while they fit, best rank first; none overtakes a better one."""
        try:
            while self._staged and self.batch.fits(self._staged[0].kv.length):
                best = self._staged[0]
                self.batch.insert(best.row, best.kv)
                del self._staged[0]
        except torch.OutOfMemoryError as error:
            self._relieve(error)

    def _give_up_stranded(self) -> list[RowUpdate]:
        """A row that does not fit though the device is empty never will, and must not block those behind it."""
        if self.batch.rows or not self._staged or self.batch.fits(self._staged[0].kv.length):
            return []
        return self._fail([self._staged[0].row], MemoryError("the row outgrows the device"))

    def _decode(self) -> list[RowUpdate]:
        if not self.batch.rows:
            return []
        try:
            logits = self._step()
        except torch.OutOfMemoryError as error:
            self._relieve(error)
            return []
        except Exception as error:
            return self._fail(list(self.batch.rows), error)
        return self._choose(list(self.batch.rows), logits)

    def _step(self) -> Tensor:
        """A decode step; rows are taken out to host memory until it fits (batch-size scaling, Baton section 4.2)."""
        while True:
            try:
                return self.batch.step()
            except ArenaFull:
                self._extract_worst()

    def _extract_worst(self) -> None:
        worst = max(self.batch.rows, key=lambda row: self._ranks[row.row_id])
        kv = self.batch.extract(worst)
        bisect.insort(self._staged, Staged(self._ranks[worst.row_id], worst, kv))

    # Memory that the device turned out not to have

    def _relieve(self, error: torch.OutOfMemoryError) -> None:
        """Take every running row out to host memory and go on with a smaller budget; the rows come back as they fit."""
        arena = self.batch.arena
        smaller = int(arena.capacity_tokens * RELIEF)
        log.warning("out of memory: K and V get %d tokens instead of %d (%s)", smaller, arena.capacity_tokens, error)
        while self.batch.rows:
            self._extract_worst()
        arena.give_back(max(1, smaller))

    def _prefill_smaller(self, rows: Sequence[Row], error: torch.OutOfMemoryError) -> list[RowUpdate]:
        """Begin a group's unfinished prompts again in two halves; a single one after memory was given back."""
        self._prefill = None
        if self._waiting and self._waiting[0] is rows:
            self._waiting.popleft()
        if len(rows) == 1:
            self._relieve(error)
        for row in rows:
            row.setbacks += 1
            row.prompt_logprobs = None
        lost = [row for row in rows if row.setbacks > MOST_SETBACKS]
        left = [row for row in rows if row.setbacks <= MOST_SETBACKS]
        half = (len(left) + 1) // 2
        self._waiting.extendleft(part for part in (left[half:], left[:half]) if part)
        return self._fail(lost, error)

    # Tokens

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[RowUpdate]:
        """Sample each row's next token and let the rows take them; rows that end leave."""
        try:
            choices = sampling.sample(rows, logits)
        except Exception as error:
            return self._fail(rows, error)
        return [self._accept(row, choice) for row, choice in zip(rows, choices, strict=True)]

    def _accept(self, row: Row, choice: Choice | sampling.NonFiniteLogits) -> RowUpdate:
        if isinstance(choice, sampling.NonFiniteLogits):
            return self._fail([row], choice, wipe=True)[0]
        try:
            update = row.accept(choice)
        except Exception as error:
            return self._fail([row], error)[0]
        if update.finish_reason is not None:
            self._forget(row)
        return update

    def _fail(self, rows: Iterable[Row], error: Exception, *, wipe: bool = False) -> list[RowUpdate]:
        """End rows that cannot go on; the others never notice."""
        log.error("rows failed: %s", error, exc_info=error)
        failed = list(rows)
        for row in failed:
            self._forget(row, wipe=wipe)
        return [RowUpdate(row.row_id, finish_reason=FinishReason.ERROR, error=_describe(error)) for row in failed]

    def _forget(self, row: Row, *, wipe: bool = False) -> None:
        del self._ranks[row.row_id]
        self._drop(row.row_id, wipe=wipe)

    def _drop(self, row_id: RowId, *, wipe: bool = False) -> None:
        """Take a row out of whichever stage holds it."""
        running = self.batch.find(row_id)
        if running is not None:
            self.batch.remove(running, wipe=wipe)
            return
        self._staged = [staged for staged in self._staged if staged.row.row_id != row_id]
        self._waiting = deque(left for group in self._waiting if (left := [r for r in group if r.row_id != row_id]))
        if self._prefill is not None:
            self._prefill.drop(row_id)
            if not self._prefill.rows:
                self._prefill = None

    def check(self) -> None:
        """Assert that every row is in exactly one stage; for tests."""
        self.batch.check()
        places = [row.row_id for row in self.batch.rows]
        places += [staged.row.row_id for staged in self._staged]
        places += [row.row_id for group in self._waiting for row in group]
        places += [row.row_id for row in self._prefill.rows] if self._prefill else []
        assert sorted(places) == sorted(self._ranks)


def _describe(error: Exception) -> str:
    """What a client may know of a fault: its kind, not its details, which are in the log."""
    if isinstance(error, sampling.NonFiniteLogits):
        return "the model computed a value that is not a finite number"
    return f"the engine failed on this request ({type(error).__name__})"
