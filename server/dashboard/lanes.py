"""One executor's rows on the dashboard's lanes, places on the screen, from its reports."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableSequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from engine.messages import RowId, RowUpdate, StepReport
from models.recent import Recent
from scheduler.length.likely import median_length
from scheduler.request import Request, State
from server.dashboard.snapshot import Change, ShownRow, Stage, rounded

ENDED = (Stage.GONE, Stage.INVALID)
KEPT = 300.0  # seconds that changes are kept for new viewers
MOST_KEPT = 20_000  # changes
MOST_PROGRAMS = 4096


@dataclass(slots=True)
class RowStages:
    lane: int
    request: Request
    # GONE before its first stage, and from its last token until the next step shows whether it keeps its slot
    stage: Stage = Stage.GONE

    @property
    def lengths(self) -> tuple[int, int, int | None]:
        return self.request.input_length, self.request.generated, rounded(median_length(self.request))


class RowTimeline:
    """Event loop only."""

    def __init__(
        self, executor: int, changes: MutableSequence[Change], held: Iterable[Request] = (), now: float = 0.0
    ) -> None:
        """Appends to `changes`. Stages of `held` requests are learned from later reports."""
        self._executor, self._changes = executor, changes
        self._past: deque[Change] = deque(maxlen=MOST_KEPT)
        self._window = 0
        self._occupants: dict[RowId, RowStages] = {}
        self._free: list[int] = []
        self._latest = Recent[str, int](MOST_PROGRAMS)  # a program's lane
        self._lanes = count()
        for request in held:
            if request.state is State.RUNNING:
                self._move(request.row_id, request, Stage.DECODE if request.generated else Stage.PREFILL, now)

    @property
    def rows(self) -> list[ShownRow]:
        """Ended rows only while they keep a slot."""
        shown = (row for row in self._occupants.values() if row.stage is not Stage.GONE)
        return [ShownRow(row.lane, row.request.row_id, row.stage, *row.lengths) for row in shown]

    def history(self, now: float) -> list[Change]:
        """Five minutes, after the latest earlier change of each lane."""
        begin = now - KEPT
        before = {change.lane: change for change in self._past if change.at <= begin}
        return [*before.values(), *(change for change in self._past if change.at > begin)]

    def report(self, report: StepReport, requests: Mapping[RowId, Request], now: float) -> None:
        """A turn is over; `requests` by row, as of its begin."""
        start = now - report.seconds
        self._window = report.shape.end - report.shape.start
        self._settle_ended(report, start)
        for rows, stage in ((report.begun, Stage.PREFILL), (report.swapped_out, Stage.PAUSED)):
            for row_id in rows:
                self._move(row_id, requests.get(row_id), stage, start)
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
        for row_id in sorted(self._occupants.keys() - held):
            if self._occupants[row_id].stage not in ENDED:
                self._leave(row_id, now)

    def clear(self, now: float) -> None:
        for row_id in list(self._occupants):
            self._leave(row_id, now)

    def _settle_ended(self, report: StepReport, start: float) -> None:
        if report.tally.invalid:
            for row in self._occupants.values():
                if row.stage is Stage.GONE:
                    self._change(row, Stage.INVALID, start)
        elif report.tally.generated and not report.tally.prompt:
            self._drop_ended(start)

    def _drop_ended(self, now: float) -> None:
        for row_id, row in list(self._occupants.items()):
            if row.stage in ENDED:
                self._leave(row_id, now)

    def _update(self, update: RowUpdate, requests: Mapping[RowId, Request], start: float, now: float) -> None:
        row = self._occupants.get(update.row_id)
        if update.tokens:
            # the first token comes with the prefill, the second with the first step in the batch
            stage, at = (Stage.STAGED, now) if row and row.stage is Stage.PREFILL else (Stage.DECODE, start)
            self._move(update.row_id, requests.get(update.row_id), stage, at)
        row = self._occupants.get(update.row_id)
        if row is not None and update.finish_reason is not None:
            self._change(row, Stage.GONE, now)

    def _enter_by_shape(self, report: StepReport, start: float) -> None:
        """Rows with a first token are staged, unless the executor reports fewer: then they entered by shape."""
        staged = [row_id for row_id, row in self._occupants.items() if row.stage is Stage.STAGED]
        if not staged:
            return
        fresh = {update.row_id for update in report.updates}
        paused = sum(row.stage is Stage.PAUSED for row in self._occupants.values())
        surplus = len(staged) + paused - report.shape.staged
        for row_id in [row_id for row_id in staged if row_id in fresh][: max(0, surplus)]:
            self._change(self._occupants[row_id], Stage.DECODE, start)

    def _move(self, row_id: RowId, request: Request | None, stage: Stage, at: float) -> None:
        row = self._occupants.get(row_id)
        if row is None and request is not None:
            row = self._occupants[row_id] = RowStages(self._find_lane(request), request)
        if row is not None:
            self._change(row, stage, at)

    def _find_lane(self, request: Request) -> int:
        """A program's turns share a lane where it is free."""
        own = self._latest.get(request.program.name) if request.program is not None else None
        if own is not None and own in self._free:
            self._free.remove(own)
            heapify(self._free)
            lane = own
        else:
            lane = heappop(self._free) if self._free else next(self._lanes)
        if request.program is not None:
            self._latest[request.program.name] = lane
        return lane

    def _change(self, row: RowStages, stage: Stage, at: float) -> None:
        if row.stage is stage:
            return
        row.stage = stage
        own = min(1.0, row.request.tokens / self._window) if self._window else 1.0
        place = (self._executor, row.lane, row.request.row_id)
        change = Change(round(at, 3), *place, stage, *row.lengths, round(own, 2))
        self._changes.append(change)
        self._past.append(change)

    def _leave(self, row_id: RowId, now: float) -> None:
        if (row := self._occupants.pop(row_id, None)) is not None:
            heappush(self._free, row.lane)
            self._change(row, Stage.GONE, now)
