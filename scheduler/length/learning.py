"""Learning while serving (Magnus, section III-B): rows whose length was predicted badly join the training set, and a
new forest takes the old one's place.

The rule is a pure function. The loop knows when; how a forest is grown and put in place is handed in.

Answers that were cut tell a lower bound of their lengths only. The estimate of all of them together is Kaplan and
Meier's ("Nonparametric estimation from incomplete observations", JASA 53, 1958): an answer that was cut counts among
those that may still end for as long as it ran. The recent lengths are the fallback where no forest predicts, or not in
time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.clock import Clock
from scheduler.journal.file import ANSWERED, CUT, RequestEntry
from scheduler.learner import Learner, Lesson
from scheduler.length.forest import Examples, Forest
from scheduler.length.holders import HolderStore, holder_of
from scheduler.recent import Recent
from scheduler.serving_time.bilinear import rmse

Lengths = NDArray[np.float32]
Cut = NDArray[np.bool_]

ROUNDING = 1e-9

ORDINARY = 0.95
"""Share of the answers whose lengths are no outliers."""


def median(lengths: Lengths, cut: Cut) -> float | None:
    """The length, from (n,) of which some were cut, that half of all answers do not exceed.

    None when so many were cut that it is not known, or there are none.
    """
    ascending, left = _survival(lengths, cut)
    reached = np.flatnonzero(left <= 0.5 + ROUNDING)
    return float(ascending[reached[0]]) if len(reached) else None


def completed(lengths: Lengths, cut: Cut) -> Lengths:
    """Lengths that answers (n,) would have come to: for each that was cut, the mean of those that became longer.

    Where none that ended by itself became longer, it counts with the tokens that it has, but as no more than the
    longest of these and ORDINARY of all: an answer without an end should not tell what others are like. Where none
    ended by itself, all stay as they are.
    """
    if cut.all():
        return lengths
    ascending, left = _survival(lengths, cut)
    longest = lengths[~cut].max()
    most = max(longest, float(np.quantile(lengths, ORDINARY, method="lower")))
    share = -np.diff(left, prepend=1.0)
    beyond = np.append(np.cumsum((share * ascending)[::-1])[::-1][1:], 0.0) + left[-1] * most
    inner = ascending < longest
    means = np.where(inner, beyond / np.where(inner, left, 1.0), np.minimum(ascending, most))
    place = np.searchsorted(ascending, lengths, side="right") - 1
    return np.where(cut, means[place], lengths).astype(np.float32)


def _survival(lengths: Lengths, cut: Cut) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lengths in ascending order, and the share of answers that become longer than each."""
    order = np.lexsort((cut, lengths))  # of equal ones, those that ended by themselves come first
    at_risk = np.arange(len(lengths), 0, -1)
    factors = np.where(cut[order], 1.0, 1 - 1 / at_risk)
    return lengths[order].astype(np.float64), np.cumprod(factors, dtype=np.float64)


WINDOW = 128
"""Newest answers that count, for each instruction and for each scope."""

INSTRUCTIONS = 1024
"""Instructions and scopes of one holder that are remembered; the one used least recently is forgotten first."""

VALUES = 2**18
"""Lengths that are remembered of all holders together, 36 bytes each; what they belong to counts as OVERHEAD."""
OVERHEAD = 32

HOLDERS = 5
"""Holders from which a newcomer is told what answers are like: fewer could tell whose they are."""


@dataclass(slots=True)
class _Lengths:
    """The newest lengths, those of answers that were cut below zero, and their median while it is known."""

    rows: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    median: float | None = None
    counted: bool = False


class LengthHistory:
    """Lengths of finished answers by scope and instruction. Event loop only."""

    def __init__(self, instructions: int = INSTRUCTIONS) -> None:
        self._newest = HolderStore(_Lengths, VALUES, instructions, OVERHEAD)
        self._latest = Recent[str, tuple[int, bool]](WINDOW)  # each holder's: length, and whether cut

    def add(self, scope: str, instruction: str, length: int, *, cut: bool = False) -> None:
        """Add an answer of `length` tokens; one that was cut would have been longer."""
        holder = holder_of(scope)
        for key in ((scope, hash(instruction)), (scope,)):
            self._newest.add(holder, key, -length if cut else length).counted = False
        self._latest[holder] = length, cut

    def expect(self, scope: str, instruction: str) -> float | None:
        """The median of this instruction's answers, else of all that the scope had, else of the latest of each of
        HOLDERS or more, and of that its power of two: whatever is asked, it is the same. None while nothing is known.
        """
        for key in ((scope, hash(instruction)), (scope,)):
            if (known := self._median(scope, key)) is not None:
                return known
        if len(self._latest) < HOLDERS:
            return None
        everybody = _median_of(self._latest.values())
        return None if everybody is None else 2.0 ** round(log2(everybody))

    def _median(self, scope: str, key: tuple[object, ...]) -> float | None:
        known = self._newest.get(holder_of(scope), key)
        if known is not None and not known.counted:
            known.median, known.counted = _median_of((abs(one), one < 0) for one in known.rows), True
        return None if known is None else known.median


def _median_of(answers: Iterable[tuple[int, bool]]) -> float | None:
    lengths, cut = np.array([*answers], dtype=np.float32).T
    return median(lengths, cut > 0)


INTERVAL = 180.0
"""Seconds between two lessons."""

SURPRISE_TOKENS = 10.0
SURPRISE_SHARE = 0.1
"""Share of the true length. This, the tokens and the interval are those of section III-B."""

MOST_EXAMPLES = 20_000
"""Rows of the training set; the oldest go first, since prompts change with time, and growing takes time."""

JUDGE_EVERY = 5
"""One of so many rows is not learned from, so that forests can be judged by it."""

MOST_JUDGES = 256
"""Newest of these rows that count."""

FEWEST_JUDGES = 10
"""Number of these rows below which every new forest is taken: so few would tell nothing."""


@dataclass(frozen=True, slots=True)
class ServedRow:
    """A request whose answer was not broken off: its features, its predicted length and its true one."""

    features: Sequence[float] | NDArray[np.float32]
    predicted: float
    generated: int
    cut: bool = False
    """Whether the answer would have become longer, but for `max_tokens`, the context, or that it repeated itself."""
    scope: str = ""
    """Whose request it was."""

    @property
    def error(self) -> float:
        """Error of the prediction in tokens, positive where it was too long."""
        return self.predicted - self.generated


def served_rows(entries: Iterable[RequestEntry]) -> list[ServedRow]:
    """The journal's requests to learn from: those that were not broken off, and whose length was predicted."""
    return [
        ServedRow(
            entry.features, entry.predicted, entry.generated, entry.outcome in CUT and not entry.replayed, entry.scope
        )
        for entry in entries
        if entry.outcome in ANSWERED and entry.features and entry.predicted is not None and entry.generated
    ]


def surprises(rows: Sequence[ServedRow]) -> tuple[ServedRow, ...]:
    """The rows to add to the training set: error above 10 tokens, and above 10 % of what came (section III-B)."""
    return tuple(row for row in rows if abs(row.error) > max(SURPRISE_TOKENS, SURPRISE_SHARE * row.generated))


def row_error(rows: Sequence[ServedRow]) -> float:
    """Root mean squared error of the predictions, in tokens; of one row at least."""
    return rmse([(row.predicted, float(row.generated)) for row in rows])


def examples(rows: Sequence[ServedRow], known: Examples | None = None) -> Examples:
    """Training examples made of rows, one at least. Answers that were cut count with the length that they would have
    come to, judged by the others and by the `known` examples.
    """
    features = np.array([row.features for row in rows], dtype=np.float32)
    before = np.empty(0, dtype=np.float32) if known is None else known.lengths
    lengths = np.concatenate((before, np.array([row.generated for row in rows], dtype=np.float32)))
    cut = np.concatenate((np.zeros(len(before), dtype=bool), np.array([row.cut for row in rows])))
    return Examples(features, completed(lengths, cut)[len(before) :])


def is_worse(new: Forest, present: Forest | None, judges: Sequence[ServedRow]) -> bool:
    """Whether a new forest predicts rows that it has not learned from worse than the present one does, or, where there
    is none, than they were predicted when they were served; by the mean absolute error."""
    if len(judges) < FEWEST_JUDGES:
        return False
    features = np.array([row.features for row in judges], dtype=np.float32)
    served = np.array([row.predicted for row in judges], dtype=np.float32)
    return _error(new.predict(features), judges) > _error(present.predict(features) if present else served, judges)


def _error(predicted: NDArray[np.float32], rows: Sequence[ServedRow]) -> float:
    """Mean absolute error in tokens. For an answer that was cut, a longer prediction is no error."""
    errors = predicted - np.array([row.generated for row in rows], dtype=np.float32)
    cut = np.array([row.cut for row in rows])
    return float(np.abs(np.where(cut, np.minimum(errors, 0), errors)).mean())


Train: TypeAlias = Callable[[Examples, Sequence[ServedRow]], Awaitable[None]]
"""Grows a forest of examples, in its own time and place, and puts it where predictions come from in one step, unless it
predicts the rows worse than the present one (`is_worse`)."""


class Learning:
    """Trains the forest at each interval, on answers that have ended and surprised it. Event loop only."""

    def __init__(
        self, train: Train, clock: Clock, training: Examples | None = None, interval: float = INTERVAL
    ) -> None:
        """`training` is what the present forest was grown from; None where there is no forest yet."""
        self.learner = Learner[ServedRow]("lengths", self._choose)
        self._train = train
        self._clock = clock
        self._training = training
        self._interval = interval
        self._judges: deque[ServedRow] = deque(maxlen=MOST_JUDGES)
        self._served = 0

    def add(self, row: ServedRow) -> None:
        """Note an answer that has ended, for the next lesson; not one of a key or salt, since all share this forest."""
        if not row.scope:
            self.learner.rows.append(row)

    async def run(self) -> None:
        """Learn at each interval until cancelled. A lesson that fails is logged, and the old forest stays."""
        never = asyncio.Event()
        while True:
            await self._clock.wait(never, self._clock.now() + self._interval)
            with self.learner.note_failures():
                await self.learn()

    async def learn(self) -> None:
        """One lesson, where rows have ended since the last. Raises what training raises."""
        before = self._training
        if self.learner.rows:
            self.learner.begin()
        if self._training is not None and self._training is not before:
            await self._train(self._training, tuple(self._judges))

    def _choose(self, rows: Sequence[ServedRow]) -> Lesson:
        """Put the judges among rows aside, and the surprises into the training set, where they stay also when no forest
        can be grown: the next lesson tries again with all of them."""
        others: list[ServedRow] = []
        for row in rows:
            self._served += 1
            (others if self._served % JUDGE_EVERY else self._judges).append(row)
        # Where there is no forest yet, nothing was predicted, so there is something to learn from every row.
        chosen = tuple(others) if self._training is None else surprises(others)
        if chosen:
            new = examples(chosen, self._training)
            self._training = new if self._training is None else self._training.joined(new, MOST_EXAMPLES)
        return Lesson(len(rows), len(chosen), row_error(rows))
