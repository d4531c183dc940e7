"""Learning from what is served: rows are gathered on the event loop, and lessons made of them elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeAlias, TypeVar

log = logging.getLogger(__name__)

Row = TypeVar("Row")

Submit: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs work off the event loop, one piece after another."""


def inline(work: Callable[[], None]) -> None:
    """A Submit for tests and simulations: at once, and here."""
    work()


@dataclass(frozen=True, slots=True)
class Lesson:
    """Result of learning from what was served in an interval."""

    rows: int  # served in the interval
    learned: int  # that the estimates have learned from
    rmse: float  # error of the estimates before learning, in their unit (Magnus, figure 14)


@dataclass(eq=False, slots=True)
class Learner(Generic[Row]):
    """Gathers rows, and learns from those of an interval where `submit` runs the work."""

    subject: str
    teach: Callable[[Sequence[Row]], Lesson | None]
    """Learns from rows; may raise anything, which is logged and counts as a failure."""
    submit: Submit = inline
    rows: list[Row] = field(default_factory=list)  # since the last lesson
    latest: Lesson | None = None
    changes: int = 0  # lessons that changed the estimates
    failures: int = 0  # lessons in which something went wrong
    next: float | None = None  # when a lesson is due, in seconds of the clock

    def learn_at_intervals(self, now: float, seconds: float) -> None:
        """Begin a lesson where the interval is over, and there are rows. The first interval begins with the first call,
        unless `next` is set."""
        if self.next is None:
            self.next = now + seconds
        if now >= self.next and self.rows:
            self.next = now + seconds
            self.begin()

    def begin(self) -> None:
        """Begin a lesson of the rows so far."""
        self.submit(partial(self.learn, self.take()))

    def take(self) -> list[Row]:
        """The rows so far, which are forgotten here."""
        rows, self.rows = self.rows, []
        return rows

    def learn(self, rows: Sequence[Row]) -> None:
        """Make a lesson of rows, here."""
        with self.note_failures():
            lesson = self.teach(rows)
            if lesson is not None:
                self.latest = lesson
                self.changes += lesson.learned > 0

    @contextmanager
    def note_failures(self) -> Iterator[None]:
        """Count and log what goes wrong in a lesson; the estimates stay as they are."""
        try:
            yield
        except CancelledError:
            log.info("learning %s is given up, since the server ends", self.subject)
        except Exception:
            self.failures += 1
            log.exception("learning %s failed, estimates stay as they are", self.subject)
