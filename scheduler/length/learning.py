"""Learning while serving (Magnus, section III-B): rows whose length was predicted badly join the training set, and a
new forest takes the old one's place.

The rule is a pure function. The loop knows when; how a forest is grown and put in place is handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.clock import Clock
from scheduler.journal.file import ANSWERED, CUT, RequestEntry
from scheduler.length.forest import Examples, Forest
from scheduler.length.history import completed

log = logging.getLogger(__name__)

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

REMEMBERED = 10_000
"""Lessons whose error is remembered: three weeks of them."""


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


@dataclass(frozen=True, slots=True)
class Lesson:
    """Result of learning from the rows of an interval; figure 14 is `rmse` over `at`."""

    at: float
    """When it was, in seconds of the clock."""
    rows: int
    surprises: int
    rmse: float
    """Error of the predictions that these rows were served with, in tokens."""


def surprises(rows: Sequence[ServedRow]) -> tuple[ServedRow, ...]:
    """The rows to add to the training set: error above 10 tokens, and above 10 % of what came (section III-B)."""
    return tuple(row for row in rows if abs(row.error) > max(SURPRISE_TOKENS, SURPRISE_SHARE * row.generated))


def rmse(rows: Sequence[ServedRow]) -> float:
    """Root mean squared error of the predictions, in tokens; of one row at least."""
    return float(np.sqrt(np.mean([row.error**2 for row in rows])))


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


class Trainer(Protocol):
    """Grows a forest, in its own time and place, and puts it where predictions come from in one step, unless it is
    worse than the present one (`is_worse`)."""

    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None: ...


class Learning:
    """Trains the forest at each interval, on answers that have ended and surprised it. Event loop only."""

    def __init__(
        self, trainer: Trainer, clock: Clock, training: Examples | None = None, interval: float = INTERVAL
    ) -> None:
        """`training` is what the present forest was grown from; None where there is no forest yet."""
        self._ended: list[ServedRow] = []  # since the last lesson
        self._trainer = trainer
        self._clock = clock
        self._training = training
        self._interval = interval
        self._judges: deque[ServedRow] = deque(maxlen=MOST_JUDGES)
        self._served = 0
        self._lessons: deque[Lesson] = deque(maxlen=REMEMBERED)
        self._failures = 0

    @property
    def lessons(self) -> Sequence[Lesson]:
        """Lessons so far, oldest first."""
        return self._lessons

    @property
    def failures(self) -> int:
        """Lessons that brought no new forest because something went wrong."""
        return self._failures

    def add(self, row: ServedRow) -> None:
        """Note an answer that has ended, for the next lesson; not one of a key or salt, since all share this forest."""
        if not row.scope:
            self._ended.append(row)

    async def run(self) -> None:
        """Learn at each interval until cancelled. A lesson that fails is logged, and the old forest stays."""
        never = asyncio.Event()
        while True:
            await self._clock.wait(never, self._clock.now() + self._interval)
            try:
                await self.learn()
            except Exception:
                self._failures += 1
                log.exception("learning failed, predictions go on as before")

    async def learn(self) -> Lesson | None:
        """One lesson; None when no row has ended since the last. Raises what its parts raise."""
        rows, self._ended = self._ended, []
        if not rows:
            return None
        # Where there is no forest yet, nothing was predicted, so there is something to learn from every row.
        training = self._hold_out(rows)
        chosen = tuple(training) if self._training is None else surprises(training)
        lesson = Lesson(self._clock.now(), len(rows), len(chosen), rmse(rows))
        self._lessons.append(lesson)
        if chosen:
            await self._train(examples(chosen, self._training))
        return lesson

    def _hold_out(self, rows: Sequence[ServedRow]) -> list[ServedRow]:
        """Put the judges among the rows aside, and return the others."""
        others: list[ServedRow] = []
        for row in rows:
            self._served += 1
            (others if self._served % JUDGE_EVERY else self._judges).append(row)
        return others

    async def _train(self, new: Examples) -> None:
        training = new if self._training is None else self._training.joined(new, MOST_EXAMPLES)
        self._training = training  # kept also when growing fails: the next lesson tries again with all of them
        await self._trainer.train(training, tuple(self._judges))
