"""Learning while serving (Magnus, III-B): badly predicted rows join the training set of a new forest. Truncated
answers are censored.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log2

import numpy as np
from numpy.typing import NDArray

from models.recent import Recent
from scheduler.clock import Clock
from scheduler.journal.file import ANSWERED, CUT, RequestEntry
from scheduler.learner import Learner, Lesson
from scheduler.length.forest import Examples, Forest
from scheduler.length.holders import HolderStore, holder_of
from scheduler.serving_time.bilinear import FloatArray, rmse

ROUNDING = 1e-9  # of shares


def survival(values: NDArray[np.floating], cut: NDArray[np.bool_], unseen: int = 0) -> tuple[FloatArray, FloatArray]:
    """Values (n,), some only known to be greater, in ascending order, and the share beyond each (Kaplan and Meier, JASA
    53, 1958); `unseen` others are at risk throughout.
    """
    order = np.lexsort((cut, values))  # ties: whole ones first
    at_risk = np.arange(len(values), 0, -1) + unseen
    factors = np.where(cut[order], 1.0, 1 - 1 / at_risk)
    return values[order].astype(np.float64), np.cumprod(factors, dtype=np.float64)


Lengths = NDArray[np.float32]
Cut = NDArray[np.bool_]

ORDINARY = 0.95  # share of lengths without outliers


def median(lengths: Lengths, cut: Cut) -> float | None:
    """Of lengths (n,), some truncated; None where too many are."""
    ascending, left = survival(lengths, cut)
    reached = np.flatnonzero(left <= 0.5 + ROUNDING)
    return float(ascending[reached[0]]) if len(reached) else None


def completed(lengths: Lengths, cut: Cut) -> Lengths:
    """Lengths (n,) with the mean of longer answers for each truncated one; else a token more, up to the ORDINARY
    quantile of all.
    """
    lengths = lengths + cut
    if cut.all():
        return lengths
    ascending, left = survival(lengths, cut)
    longest = lengths[~cut].max()
    most = max(longest, float(np.quantile(lengths, ORDINARY, method="lower")))
    share = -np.diff(left, prepend=1.0)
    beyond = np.append(np.cumsum((share * ascending)[::-1])[::-1][1:], 0.0) + left[-1] * most
    inner = ascending < longest
    means = np.where(inner, beyond / np.where(inner, left, 1.0), np.minimum(ascending, most))
    place = np.searchsorted(ascending, lengths, side="right") - 1
    return np.where(cut, means[place], lengths).astype(np.float32)


WINDOW = 128  # newest answers of each instruction and scope

INSTRUCTIONS = 1024  # and scopes of a holder, the latest used

VALUES = 2**18  # lengths of all holders, 36 bytes each
OVERHEAD = 32

HOLDERS = 5  # fewest in a newcomer's estimate: fewer might be identified


@dataclass(slots=True)
class _Lengths:
    """Newest, negative where truncated, and their median."""

    rows: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    median: float | None = None
    counted: bool = False


class LengthHistory:
    """By scope and instruction, the fallback where no forest predicts in time. Event loop only."""

    def __init__(self, instructions: int = INSTRUCTIONS) -> None:
        self._newest = HolderStore(_Lengths, VALUES, instructions, OVERHEAD)
        self._latest = Recent[str, tuple[int, bool]](WINDOW)  # by holder: length, and whether truncated

    def add(self, scope: str, instruction: str, length: int, *, cut: bool = False) -> None:
        holder = holder_of(scope)
        for key in ((scope, hash(instruction)), (scope,)):
            self._newest.add(holder, key, -length if cut else length).counted = False
        self._latest[holder] = length, cut

    def expect(self, scope: str, instruction: str) -> float | None:
        """Median of the instruction's answers, else the scope's, else of the latest of HOLDERS or more holders,
        rounded to a power of two. None while unknown.
        """
        for key in ((scope, hash(instruction)), (scope,)):
            known = self._newest.get(holder_of(scope), key)
            if known is not None and not known.counted:
                known.median, known.counted = _median_of((abs(one), one < 0) for one in known.rows), True
            if known is not None and known.median is not None:
                return known.median
        if len(self._latest) < HOLDERS:
            return None
        everybody = _median_of(self._latest.values())
        return None if everybody is None else 2.0 ** round(log2(everybody))


def _median_of(answers: Iterable[tuple[int, bool]]) -> float | None:
    lengths, cut = np.array([*answers], dtype=np.float32).T
    return median(lengths, cut > 0)


INTERVAL = 180.0  # seconds between two lessons

SURPRISE_TOKENS = 10.0
SURPRISE_SHARE = 0.1  # of the true length (III-B, as tokens and interval)

MOST_EXAMPLES = 20_000  # newest rows of the training set

JUDGE_EVERY = 5  # one row of these judges

MOST_JUDGES = 256  # newest kept

FEWEST_JUDGES = 10  # fewer accept every forest


@dataclass(frozen=True, slots=True)
class ServedRow:
    features: Sequence[float] | NDArray[np.float32]
    predicted: float
    generated: int
    cut: bool = False  # truncated by `max_tokens`, the context or its repetition
    scope: str = ""

    @property
    def error(self) -> float:
        """In tokens, positive where the prediction was too long."""
        return self.predicted - self.generated


def served_rows(entries: Iterable[RequestEntry]) -> list[ServedRow]:
    return [
        ServedRow(one.features, one.predicted, one.generated, one.outcome in CUT and not one.replayed, one.scope)
        for one in entries
        if one.outcome in ANSWERED and one.features and one.predicted is not None and one.generated
    ]


def surprises(rows: Sequence[ServedRow]) -> tuple[ServedRow, ...]:
    """Rows wrong by more than both bounds (III-B)."""
    return tuple(row for row in rows if abs(row.error) > max(SURPRISE_TOKENS, SURPRISE_SHARE * row.generated))


def row_error(rows: Sequence[ServedRow]) -> float:
    return rmse([(row.predicted, float(row.generated)) for row in rows])


def examples(rows: Sequence[ServedRow], known: Examples | None = None) -> Examples:
    """Truncated lengths are completed from the others and `known`."""
    features = np.array([row.features for row in rows], dtype=np.float32)
    before = np.empty(0, dtype=np.float32) if known is None else known.lengths
    lengths = np.concatenate((before, np.array([row.generated for row in rows], dtype=np.float32)))
    cut = np.concatenate((np.zeros(len(before), dtype=bool), np.array([row.cut for row in rows])))
    return Examples(features, completed(lengths, cut)[len(before) :])


def is_worse(new: Forest, present: Forest | None, judges: Sequence[ServedRow]) -> bool:
    """Whether the mean absolute error on held-out rows exceeds the present forest's, or else that when served."""
    if len(judges) < FEWEST_JUDGES:
        return False
    features = np.array([row.features for row in judges], dtype=np.float32)
    served = np.array([row.predicted for row in judges], dtype=np.float32)
    return _error(new.predict(features), judges) > _error(present.predict(features) if present else served, judges)


def _error(predicted: NDArray[np.float32], rows: Sequence[ServedRow]) -> float:
    """Mean absolute, in tokens; a longer prediction of a truncated answer is none."""
    errors = predicted - np.array([row.generated for row in rows], dtype=np.float32)
    return float(np.abs(np.where([row.cut for row in rows], np.minimum(errors, 0), errors)).mean())


# grows a forest and puts it in place in one step, unless it predicts the rows worse (`is_worse`)
Train = Callable[[Examples, Sequence[ServedRow]], Awaitable[None]]


@dataclass(eq=False)
class Learning:
    """Trains the forest at each interval on surprising answers. Event loop only."""

    train: Train
    clock: Clock
    training: Examples | None = None  # what the present forest was grown from
    interval: float = INTERVAL
    _judges: deque[ServedRow] = field(default_factory=lambda: deque(maxlen=MOST_JUDGES))
    _served: int = 0

    def __post_init__(self) -> None:
        self.learner = Learner[ServedRow]("lengths", self._choose)

    def add(self, row: ServedRow) -> bool:
        """Answers of a key or salt are ignored, since all share this forest. False: nothing is predicted again."""
        if not row.scope:
            self.learner.rows.append(row)
        return False

    async def run(self) -> None:
        """Until cancelled. A failed lesson is logged, and the old forest stays."""
        never = asyncio.Event()
        while True:
            await self.clock.wait(never, self.clock.now() + self.interval)
            with self.learner.note_failures():
                await self.learn()

    async def learn(self) -> None:
        before = self.training
        if self.learner.rows:
            self.learner.begin()
        if self.training is not None and self.training is not before:
            await self.train(self.training, tuple(self._judges))

    def _choose(self, rows: Sequence[ServedRow]) -> Lesson:
        """Set judges aside and add surprises to the training set, where they stay if this lesson fails."""
        others: list[ServedRow] = []
        for row in rows:
            self._served += 1
            (others if self._served % JUDGE_EVERY else self._judges).append(row)
        chosen = tuple(others) if self.training is None else surprises(others)
        if chosen:
            new = examples(chosen, self.training)
            self.training = new if self.training is None else self.training.joined(new, MOST_EXAMPLES)
        return Lesson(len(rows), len(chosen), row_error(rows))
