"""A bilinear model of this machine, learned from its steps: medians of cells of similar rows and length."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from math import inf, log2
from statistics import median
from typing import Literal, NamedTuple

from engine.measure.timing import Timing, Timings
from engine.messages import RowId, StepReport
from scheduler.learner import Learner, Lesson, Submit, inline
from scheduler.serving_time.bilinear import LEAST_SECONDS, MANY, Bilinear, FloatArray, ServingTime, fit_surfaces, rmse

Phase = Literal["prefill", "decode"]


class Step(NamedTuple):
    phase: Phase
    timing: Timing

    def price(self, model: Bilinear) -> float:
        price = model.prefill if self.phase == "prefill" else model.iteration
        return price(float(self.timing.rows), float(self.timing.length))


@dataclass(slots=True)
class _Group:
    rows: int
    unread: set[RowId]  # without a first token
    cells: int = 0  # tokens prefilled so far, padding included
    seconds: float = 0.0


class StepTimings:
    """One executor's reports in order. A chunked prefill is one timing; a decode beside it is subtracted; steps in
    which rows enter by shape, join or end are ignored.
    """

    def __init__(self, *, every: bool = False) -> None:
        """`every`: also decode steps in which rows join or end, or that overlap a prompt."""
        self._every = every
        self._step = 0
        self._decoded = inf  # rows of the latest decode step, if one iteration
        self._group: _Group | None = None

    def read(self, report: StepReport, model: Bilinear | None) -> Iterator[Step]:
        """Timings completed by this report; `model` splits mixed steps."""
        iterations, self._step = report.step - self._step, report.step
        if report.begun:
            self._group = _Group(len(report.begun), set(report.begun))
        tally, group, updated = report.tally, self._group, {update.row_id for update in report.updates}
        read = tally.prompt + tally.pad
        first = len(group.unread & updated) if group is not None and read else 0
        decoded = tally.generated + tally.invalid - first
        if iterations < 1 or (decoded and not tally.reads) or (decoded and read and model is None):
            self._group = None
        elif not read:
            ends = any(update.finish_reason is not None for update in report.updates)
            moved = iterations == 1 and (ends or decoded > self._decoded)
            self._decoded = decoded
            if decoded and report.seconds > 0 and (self._every or (group is None and not moved)):
                rows, columns = max(1, round(decoded / iterations)), round(tally.reads / decoded)
                yield Step("decode", Timing(rows, columns, report.seconds / iterations))
        elif group is not None:
            beside = model.iteration(float(decoded), tally.reads / decoded) if model is not None and decoded else 0.0
            group.cells += read
            group.seconds += max(0.0, report.seconds - beside)
            group.unread -= updated
            if not group.unread:
                self._group = None
                if group.seconds > 0:
                    yield Step("prefill", Timing(group.rows, max(1, round(group.cells / group.rows)), group.seconds))


log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between fits

EAGER_INTERVAL = 1.0  # until a model of steps that served

FEWEST = 16  # decode steps for a first model

FEWEST_PREFILLS = 4

FEWEST_CHANGED = 8  # steps to detect a change

LATEST = 15  # timings kept in a cell

CELLS_PER_DOUBLING = 2

NEAR = 2  # cells apart, beyond which timings do not compare

CHANGE = 1.25  # ratio of medians that means the machine has changed

MOST = 4.0  # change at once

SURE = 3  # timings of a cell that counts: one may be a stall's

UNMEASURED_ITERATION = 0.02  # seconds, as in SSJF's simulator

UNKNOWN = Bilinear(d4=UNMEASURED_ITERATION)  # a batch costs its iterations

KEEP_INTERVAL = 60.0  # seconds between saves

Keep = Callable[[Bilinear, Timings], None]  # saves a model and its timings, off the event loop

_Place = tuple[Phase, int, int]


class MachineModel(ServingTime):
    """`model` is None until FEWEST decode steps and FEWEST_PREFILLS prefills were seen unless some were timed before,
    and replaced as a whole by any thread: read it once.
    """

    def __init__(self, model: Bilinear | None = None) -> None:
        self.model = model

    @property
    def usable(self) -> Bilinear:
        return UNKNOWN if self.model is None else self.model

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        return self.usable.estimate_all(batches)


@dataclass(eq=False)
class StepLearning:
    """`receive` belongs to the event loop; submitted work touches the cells only."""

    machine: MachineModel
    submit: Submit = inline
    _: KW_ONLY
    timings: Timings = Timings()  # earlier ones; those of copies and slices are kept as they are
    keep: Keep | None = None
    _cells: dict[_Place, deque[Timing]] = field(default_factory=dict)
    _counts: Counter[Phase] = field(default_factory=Counter)
    _readers: dict[int, StepTimings] = field(default_factory=dict)
    _now: float = 0.0
    _next_keep: float = 0.0
    _first: Bilinear | None = None  # of earlier timings only
    _unkept: bool = False  # a newer fit than the saved one

    def __post_init__(self) -> None:
        self.learner = Learner[Step]("what steps take", self._learn, self.submit, next=0.0)
        self._add((Step("prefill", timing) for timing in self.timings.prefill), SURE)  # medians
        self._add((Step("decode", timing) for timing in self.timings.decode), SURE)
        if self.machine.model is None and self.timings.prefill and self.timings.decode:
            self.machine.model = self._first = self._fit(self._timings())

    def receive(self, report: StepReport, now: float) -> None:
        """`now` in seconds of the clock."""
        self.learner.rows += self._readers.setdefault(report.executor, StepTimings()).read(report, self.machine.model)
        self._now = now
        self.learner.learn_at_intervals(now, EAGER_INTERVAL if self.machine.model is self._first else INTERVAL)

    def close(self) -> None:
        """Save, once all submitted work is done."""
        if self.learner.rows or self._unkept:
            self._now = inf
            self.learner.learn(self.learner.take())

    def _learn(self, fresh: Sequence[Step]) -> Lesson | None:
        before, usable = self.machine.model, self.machine.usable
        if before is not None and fresh and (factor := self._change(fresh, before)) != 1.0:
            told = "the machine has become %s: steps take %.2f times their earlier time; estimates follow"
            log.info(told, "slower" if factor > 1 else "faster", factor)
            for place, cell in self._cells.items():  # also those not visited since
                self._cells[place] = deque((replace(one, seconds=factor * one.seconds) for one in cell), LATEST)
        self._add(fresh)
        if self._counts["decode"] < FEWEST or self._counts["prefill"] < FEWEST_PREFILLS:
            return None
        timings = self._timings()
        if (model := self._fit(timings)) is None:
            return None
        self.machine.model = model
        self._unkept = True
        if self._now >= self._next_keep and self.keep is not None:
            self._next_keep, self._unkept = self._now + KEEP_INTERVAL, False
            self.keep(model, timings)
        error = rmse([(_seconds(usable, one), one.timing.seconds) for one in fresh]) if fresh else 0.0
        return Lesson(len(fresh), len(fresh), error)

    def _fit(self, timings: Timings) -> Bilinear | None:
        before = self.machine.model
        model = fit_surfaces(timings.prefill, timings.decode, () if before is None else (before.c1, before.c0))
        if model.gains_by_rows:
            return model
        log.info("prices by which %d requests are no faster than one are not taken: other work ran beside", MANY)
        return None

    def _timings(self) -> Timings:
        return replace(self.timings, prefill=self._medians("prefill"), decode=self._medians("decode"))

    def _add(self, steps: Iterable[Step], weight: int = 1) -> None:
        for step in steps:
            self._cells.setdefault(_place(step), deque(maxlen=LATEST)).extend([step.timing] * weight)
            self._counts[step.phase] += 1

    def _change(self, fresh: Sequence[Step], model: Bilinear) -> float:
        """Median ratio of the latest decode steps to nearby cells; 1 while uncertain. The model only compares steps
        with cells.
        """
        usual = {
            place: max(LEAST_SECONDS, median(one.seconds / _seconds(model, Step(place[0], one)) for one in cell))
            for place, cell in self._cells.items()
            if place[0] == "decode" and len(cell) >= SURE
        }
        factors = []
        for step in fresh:
            phase, rows, length = _place(step)
            distances = {place: abs(place[1] - rows) + abs(place[2] - length) for place in usual}
            nearest = min(distances, key=distances.__getitem__, default=None)
            if phase == "decode" and nearest is not None and distances[nearest] <= NEAR:
                factors.append(step.timing.seconds / _seconds(model, step) / usual[nearest])
        factor = median(factors) if len(factors) >= FEWEST_CHANGED else 1.0
        return min(MOST, max(1 / MOST, factor)) if max(factor, 1 / factor) > CHANGE else 1.0

    def _medians(self, phase: Phase) -> tuple[Timing, ...]:
        cells = (cell for (own, *_), cell in sorted(self._cells.items()) if own == phase)
        medians = (map(median, zip(*map(astuple, cell), strict=True)) for cell in cells)
        return tuple(Timing(round(rows), round(length), seconds) for rows, length, seconds in medians)


def _seconds(model: Bilinear, step: Step) -> float:
    return max(LEAST_SECONDS, step.price(model))


def _place(step: Step) -> _Place:
    rows, length = step.timing.rows, step.timing.length
    return step.phase, round(CELLS_PER_DOUBLING * log2(rows)), round(CELLS_PER_DOUBLING * log2(max(1, length)))
