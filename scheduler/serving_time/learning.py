"""Learning from batches that have ended, while others run: what they took refines the estimates of what the next
will take (Magnus, section III-D; SCLS's model is fitted again in the same way).

It knows when to learn; the lessons know from which batches, and what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from scheduler.plan import Assignment

log = logging.getLogger(__name__)

INTERVAL = 120.0
"""Seconds between two lessons, as in Magnus, section III-D."""

Submit: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs work off the event loop, one piece after another."""

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Lesson:
    """Result of learning from the batches of an interval."""

    batches: int
    learned: int
    """Batches that estimates were learned from: Magnus's from those that were surprises, SCLS's from all that are
    remembered; 0 where the estimates are not changed."""
    rmse: float
    """Error of the estimates before learning, with the true generation lengths, in seconds (Magnus, figure 14)."""


class Lessons(Protocol[Batch]):
    """Turns assignments into lessons for an estimator."""

    def read(self, assignment: Assignment) -> Batch | None:
        """The batch to learn from in an assignment that is over, or None. Called on the event loop."""
        ...

    def learn(self, served: Sequence[Batch]) -> Lesson:
        """Learn from the batches of an interval. Called off the event loop; may raise, and then nothing changes."""
        ...


def inline(work: Callable[[], None]) -> None:
    """A Submit for tests and simulations: at once, and here."""
    work()


class BatchLearning(Generic[Batch]):
    """A PlanObserver. `finished` belongs to the event loop; the work that it submits touches the lessons and their
    results only."""

    def __init__(self, lessons: Lessons[Batch], submit: Submit, *, interval: float = INTERVAL) -> None:
        self.latest: Lesson | None = None
        self.changes = 0
        """Lessons that changed the estimates."""
        self._lessons = lessons
        self._submit = submit
        self._interval = interval
        self._served: list[Batch] = []
        self._next: float | None = None

    def finished(self, assignment: Assignment, now: float) -> None:
        served = self._lessons.read(assignment)
        if served is not None:
            self._served.append(served)
        if self._next is None:
            self._next = now + self._interval
        if now >= self._next and self._served:
            self._next = now + self._interval
            served_since, self._served = tuple(self._served), []
            self._submit(partial(self._learn, served_since))

    def _learn(self, served: Sequence[Batch]) -> None:
        try:
            self.latest = self._lessons.learn(served)
        except Exception:
            log.exception("learning serving times from %d batches failed; the estimates stay as they are", len(served))
        else:
            self.changes += self.latest.learned > 0
