"""Decode steps, one after another or each launched before the last one's tokens are read.

    one after another   host reads 1, launches 2; the device waits meanwhile
    ahead               host launches 2, reads 1, launches 3, reads 2

Ahead, a row that ends or leaves is computed once in vain; NaN is zeroed on the device before rows move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import OutOfMemoryError, StepOutcome
from engine.forward.batch import RunningBatch
from engine.forward.shortage import refusing
from engine.messages import RowUpdate, StepStats
from engine.row import Choice, Row, decode_together
from engine.sampling import sampler as sampling
from engine.sampling.sampler import Chosen, Unchosen, Unread
from engine.sampling.table import SamplingTable
from engine.transfer import send


@dataclass(frozen=True, slots=True)
class _Step:
    chosen: Chosen
    width: int
    computed: StepStats  # without its own tokens


class Decode:
    def __init__(self, batch: RunningBatch, device: torch.device, *, ahead: bool) -> None:
        self._batch = batch
        self._device = device
        self._ahead = ahead
        batch.ahead = int(ahead)
        self._table = SamplingTable()
        self._under_way: _Step | None = None

    def step(self) -> StepOutcome[Row]:
        """Ahead, the next step is under way on return."""
        step, unread = self._begun()
        if step is None:
            step = self._launch()
            unread = {row: place for place, row in enumerate(step.chosen.rows)}
        following = self._follow(step, unread) if self._ahead else None
        choices = step.chosen.read()
        if following is not None and step.chosen.redrawn:  # it was fed another token
            self._batch.undo_step()
            following = None
        self._under_way = following
        return _taken(step, unread, choices)

    def settle(self) -> StepOutcome[Row]:
        step, unread = self._begun()
        return StepOutcome() if step is None else _taken(step, unread, step.chosen.read())

    def enter(self, joining: Sequence[Row]) -> StepOutcome[Row]:
        """By shape; none may be under way."""
        logits = self._batch.enter(joining)
        try:
            chosen = self._choose(logits)
            choices = chosen.read()
        except BaseException:
            self._batch.undo_step(joining)
            raise
        fed, running = [row.length for row in joining], len(self._batch) - len(joining)
        pad = max(fed) * len(self._batch) - sum(fed) - running
        step = _Step(chosen, len(self._batch), StepStats(prompt=sum(fed), pad=pad))
        return _taken(step, {row: place for place, row in enumerate(chosen.rows)}, choices)

    def _begun(self) -> tuple[_Step | None, dict[Row, int]]:
        """With the places of rows that have run ever since."""
        step, self._under_way = self._under_way, None
        if step is None:
            return None, {}
        running = set(self._batch.rows) - self._batch.joined
        unread = {row: place for place, row in enumerate(step.chosen.rows) if row in running and not row.ended}
        return (step, unread) if unread else (None, {})

    def _follow(self, step: _Step, unread: dict[Row, int]) -> _Step | None:
        """None where the host must read the `unread` tokens first."""
        live = [row for row in self._batch.rows if not row.ended]
        goes_on = any(row.step + (row in unread) < row.sampling.max_tokens for row in live)
        if not goes_on or any(row.matcher is not None for row in live) or not self._batch.can_step():
            return None
        try:
            return self._launch(step.chosen.tokens, unread)
        except OutOfMemoryError:  # reported on the next launch
            return None

    def _launch(self, tokens: Tensor | None = None, unread: dict[Row, int] | None = None) -> _Step:
        """`unread`: places in the device's `tokens`. A failure changes nothing."""
        fed, late = None, Unread(torch.empty(0)) if self._ahead else None
        if tokens is not None and unread is not None:
            fed, late = self._newest(tokens, unread)
        with refusing():
            logits = self._batch.step(fed)
            try:
                chosen = self._choose(logits, late)
                if self._ahead:
                    broken = ~chosen.finite
                    if len(chosen.rows) < len(self._batch):
                        none = torch.zeros(len(self._batch), dtype=torch.bool, device=self._device)
                        broken = none.index_copy_(0, send(self._live(), self._device), broken)
                    self._batch.void(broken)
            except BaseException:
                self._batch.undo_step()
                raise
        return _Step(chosen, len(self._batch), self._batch.reads())

    def _choose(self, logits: Tensor, unread: Unread | None = None) -> Chosen:
        rows, live = self._batch.rows, self._live()
        some = logits if len(live) == len(rows) else logits[send(live, self._device)]
        return sampling.Chosen(self._table, [rows[place] for place in live], some, unread)

    def _live(self) -> Sequence[int]:
        return [place for place, row in enumerate(self._batch.rows) if not row.ended]

    def _newest(self, tokens: Tensor, unread: dict[Row, int]) -> tuple[Tensor, Unread]:
        """(rows,), and what the host lacks."""
        rows = self._batch.rows
        if len(unread) == len(tokens) and rows == list(unread):
            return tokens, Unread(tokens, range(len(rows)))
        live = self._live()
        places = [unread.get(row, -1) for row in rows]
        late = frozenset(index for index, place in enumerate(live) if places[place] >= 0)
        known = [0 if row in unread else row.last_token for row in rows]
        at, host = send([places, known], self._device)
        lacking = torch.where(at >= 0, tokens[at.clamp(min=0)], -1)
        fed = torch.where(at >= 0, lacking, host)
        return fed, Unread(lacking if len(live) == len(rows) else lacking[send(live, self._device)], late)


def _taken(step: _Step, unread: dict[Row, int], choices: Sequence[Choice | Unchosen]) -> StepOutcome[Row]:
    counted = StepStats(generated=len(unread), invalid=step.width - len(unread))
    return accept(list(unread), [choices[place] for place in unread.values()], step.computed + counted)


def accept(
    rows: Sequence[Row], choices: Sequence[Choice | Unchosen], tally: StepStats, read: Sequence[Row] = ()
) -> StepOutcome[Row]:
    """One row's failure is its own."""
    updates: list[RowUpdate] = []
    failures: list[tuple[Row, Exception]] = []
    decode_together(rows, choices)
    for row, choice in zip(rows, choices, strict=True):
        try:
            if not isinstance(choice, Choice):
                raise choice
            updates.append(row.accept(choice))
        except Exception as error:
            failures.append((row, error))
    return StepOutcome(updates, failures, tally, read)
