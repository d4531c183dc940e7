"""One executor's rows as a viewer sees them: which lane each has, and which stage it is in.

It learns that from the executor's reports alone, turn by turn, notes each change with its moment, and keeps the stages
that are over for five minutes. It knows no clock, no viewer and no drawing; a lane is a place on the screen, not a
place in the arena.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

from engine.messages import RowId, RowUpdate, StepReport
from scheduler.request import Request, State

KEPT = 300.0  # seconds for which a stage that is over is kept
MOST_KEPT = 10_000  # stages that are kept at most


class Stage(IntEnum):
    """The stage that a row is in; the numbers go over the wire."""

    GONE = 0
    PREFILL = 1
    """The prompt is being read."""
    STAGED = 2
    """The prompt is read, and the row waits for a slot."""
    DECODE = 3
    """The row is in the batch, and gets one token a step."""
    PAUSED = 4
    """The row is taken out of the batch to host memory, for a while."""
    INVALID = 5
    """The row has ended but keeps its slot: what is computed for it is of no use."""


@dataclass(slots=True)
class Occupant:
    """A row on its lane."""

    lane: int
    request: Request
    stage: Stage
    since: float
    """Moment from which on it is in this stage."""
    own: float = 0.0
    """Part of the columns that it read for itself, rather than for padding, when the stage began."""
    ended: bool = False
    """Whether the row has its last token; the next step tells whether it keeps its slot."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row's change to another stage, and its moment."""

    at: float
    lane: int
    row_id: RowId
    stage: Stage


@dataclass(frozen=True, slots=True)
class Span:
    """A row's time in one stage."""

    lane: int
    request: Request
    stage: Stage
    begin: float
    end: float | None
    """None while it lasts."""
    generated: int
    own: tuple[float, float]
    """Part of the columns that the row read for itself, at the begin and at the end."""


class Lanes:
    """The lanes of one executor's rows. Everything public belongs to the event loop's thread."""

    def __init__(self, held: Iterable[Request] = (), now: float = 0.0) -> None:
        """`held` are requests that the executor has already; what became of those that run is found out by and by."""
        self._past: deque[Span] = deque(maxlen=MOST_KEPT)
        self._window = 0
        self._occupants: dict[RowId, Occupant] = {}
        self._free: list[int] = []
        self._lanes = 0
        self._changes: list[Change] = []
        for request in held:
            if request.state is State.RUNNING:
                self._occupants[request.row_id] = self._occupant(request, _likely(request), now)

    def __contains__(self, row_id: RowId) -> bool:
        """Whether a row has a lane, or has ended here."""
        return row_id in self._occupants

    @property
    def occupants(self) -> Collection[Occupant]:
        """Rows with a lane; those that have ended only where they keep a slot."""
        return [row for row in self._occupants.values() if not row.ended or row.stage is Stage.INVALID]

    def history(self, now: float) -> list[Span]:
        """The stages of the last five minutes, those that last included."""
        lasting = [_span(row, None, self._own(row)) for row in self.occupants if row.stage is not Stage.GONE]
        return [*(span for span in self._past if span.end is not None and span.end > now - KEPT), *lasting]

    def take_changes(self) -> list[Change]:
        """Changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def report(self, report: StepReport, requests: Mapping[RowId, Request], now: float) -> None:
        """One turn is over. `requests` are those that the executor had when it began, by row."""
        start = now - report.seconds
        self._window = report.shape.end - report.shape.start
        self._settle_ended(report, start)
        for row_id in report.begun:
            self._move(row_id, requests.get(row_id), Stage.PREFILL, start)
        for row_id in report.extracted:
            self._move(row_id, requests.get(row_id), Stage.PAUSED, start)
        for update in report.updates:
            row = self._occupants.get(update.row_id)
            if row is None or row.stage is not Stage.DECODE or update.finish_reason is not None:
                self._update(update, requests, start, now)
        self._enter_by_shape(report, start)
        for back in report.handed_back:
            for row_id in back.row_ids:
                self._leave(row_id, now)
        if not report.shape.rows:
            self._drop_ended(now)

    def prune(self, held: Collection[RowId], now: float) -> None:
        """Drop rows that the executor lost without a word: those of requests that were cancelled."""
        for row_id in [row_id for row_id, row in self._occupants.items() if not row.ended and row_id not in held]:
            self._leave(row_id, now)

    def clear(self, now: float) -> None:
        """The executor is gone."""
        for row_id in list(self._occupants):
            self._leave(row_id, now)

    def _settle_ended(self, report: StepReport, start: float) -> None:
        """A decode step tells whether rows that had ended were still in it."""
        if report.tally.invalid:
            for row_id, row in self._occupants.items():
                if row.ended and row.stage is not Stage.INVALID:
                    self._change(row_id, row, Stage.INVALID, start)
        elif report.tally.generated and not report.tally.prompt:
            self._drop_ended(start)

    def _drop_ended(self, now: float) -> None:
        for row_id in [row_id for row_id, row in self._occupants.items() if row.ended]:
            self._leave(row_id, now)

    def _update(self, update: RowUpdate, requests: Mapping[RowId, Request], start: float, now: float) -> None:
        row = self._occupants.get(update.row_id)
        if update.token_ids:
            # A row's first token is chosen when its prompt has been read; from the second on it is in the batch.
            stage, at = (Stage.STAGED, now) if row and row.stage is Stage.PREFILL else (Stage.DECODE, start)
            self._move(update.row_id, requests.get(update.row_id), stage, at)
        row = self._occupants.get(update.row_id)
        if row is not None and update.finish_reason is not None:
            self._close(row, now)
            row.ended, row.since = True, now
            self._changes.append(Change(now, row.lane, update.row_id, Stage.GONE))

    def _enter_by_shape(self, report: StepReport, start: float) -> None:
        """Rows with a first token are staged, unless the executor says that fewer are: then they entered the batch."""
        fresh = {update.row_id for update in report.updates}
        staged = [row_id for row_id, row in self._occupants.items() if row.stage is Stage.STAGED and not row.ended]
        paused = sum(row.stage is Stage.PAUSED for row in self._occupants.values())
        surplus = len(staged) + paused - report.shape.staged
        for row_id in [row_id for row_id in staged if row_id in fresh][: max(0, surplus)]:
            self._change(row_id, self._occupants[row_id], Stage.DECODE, start)

    def _move(self, row_id: RowId, request: Request | None, stage: Stage, at: float) -> None:
        """Note a row's stage; an unknown row was cancelled while the turn was under way."""
        row = self._occupants.get(row_id)
        if row is None and request is not None:
            row = self._occupants[row_id] = self._occupant(request, Stage.GONE, at)
        if row is not None and row.stage is not stage:
            self._change(row_id, row, stage, at)

    def _change(self, row_id: RowId, row: Occupant, stage: Stage, at: float) -> None:
        self._close(row, at)
        row.stage, row.since, row.own = stage, at, self._own(row)
        self._changes.append(Change(at, row.lane, row_id, stage))

    def _leave(self, row_id: RowId, now: float) -> None:
        row = self._occupants.pop(row_id, None)
        if row is None:
            return
        heappush(self._free, row.lane)
        self._close(row, now)
        if not row.ended or row.stage is Stage.INVALID:
            self._changes.append(Change(now, row.lane, row_id, Stage.GONE))

    def _close(self, row: Occupant, at: float) -> None:
        """Keep a stage that is over."""
        if at > row.since and row.stage is not Stage.GONE and (not row.ended or row.stage is Stage.INVALID):
            self._past.append(_span(row, at, self._own(row)))

    def _own(self, row: Occupant) -> float:
        return min(1.0, row.request.tokens / self._window) if self._window else 1.0

    def _occupant(self, request: Request, stage: Stage, now: float) -> Occupant:
        """A row on the lowest free lane."""
        if not self._free:
            heappush(self._free, self._lanes)
            self._lanes += 1
        return Occupant(heappop(self._free), request, stage, now)


def _span(row: Occupant, end: float | None, own: float) -> Span:
    return Span(row.lane, row.request, row.stage, row.since, end, row.request.generated, (row.own, own))


def _likely(request: Request) -> Stage:
    return Stage.DECODE if request.generated else Stage.PREFILL
