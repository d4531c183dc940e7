"""Learning from what is served: rows are gathered on the event loop, lessons run elsewhere."""

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

Submit: TypeAlias = Callable[[Callable[[], None]], object]  # runs work off the event loop, one at a time


def inline(work: Callable[[], None]) -> None:
    """A Submit that runs at once, for tests and simulations."""
    work()


@dataclass(frozen=True, slots=True)
class Lesson:
    """Result of learning from an interval."""

    rows: int  # served in the interval
    learned: int  # used
    rmse: float  # of the estimates before learning, in their unit (Magnus, figure 14)


@dataclass(eq=False, slots=True)
class Learner(Generic[Row]):
    """Gathers rows, and learns from an interval's rows through `submit`."""

    subject: str
    teach: Callable[[Sequence[Row]], Lesson | None]  # may raise anything: logged, and counted as a failure
    submit: Submit = inline
    rows: list[Row] = field(default_factory=list)  # since the last lesson
    latest: Lesson | None = None
    changes: int = 0  # lessons that changed the estimates
    failures: int = 0
    next: float | None = None  # when a lesson is due

    def learn_at_intervals(self, now: float, seconds: float) -> None:
        """Begin a lesson if the interval is over and there are rows. The first interval begins with the first call,
        unless `next` is set.
        """
        if self.next is None:
            self.next = now + seconds
        if now >= self.next and self.rows:
            self.next = now + seconds
            self.begin()

    def begin(self) -> None:
        self.submit(partial(self.learn, self.take()))

    def take(self) -> list[Row]:
        """Remove and return the rows so far."""
        rows, self.rows = self.rows, []
        return rows

    def learn(self, rows: Sequence[Row]) -> None:
        """Learn here and now."""
        with self.note_failures():
            lesson = self.teach(rows)
            if lesson is not None:
                self.latest = lesson
                self.changes += lesson.learned > 0

    @contextmanager
    def note_failures(self) -> Iterator[None]:
        """Count and log failures; estimates stay as they are."""
        try:
            yield
        except CancelledError:
            log.info("learning %s is given up, since the server ends", self.subject)
        except Exception:
            self.failures += 1
            log.exception("learning %s failed, estimates stay as they are", self.subject)
