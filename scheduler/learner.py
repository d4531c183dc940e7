"""Learning: rows are gathered here, lessons run elsewhere."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Row = TypeVar("Row")

Submit = Callable[[Callable[[], None]], object]  # off the event loop, one at a time


def inline(work: Callable[[], None]) -> None:
    work()


@dataclass(frozen=True, slots=True)
class Lesson:
    rows: int
    learned: int  # used
    rmse: float  # before (Magnus, figure 14)


@dataclass(eq=False, slots=True)
class Learner(Generic[Row]):
    subject: str
    teach: Callable[[Sequence[Row]], Lesson | None]  # failures are logged
    submit: Submit = inline
    rows: list[Row] = field(default_factory=list)
    latest: Lesson | None = None
    changes: int = 0  # that changed estimates
    failures: int = 0
    next: float | None = None  # when due

    def learn_at_intervals(self, now: float, seconds: float) -> None:
        """The first after an interval, unless `next` is set."""
        if self.next is None:
            self.next = now + seconds
        if now >= self.next and self.rows:
            self.next = now + seconds
            self.begin()

    def begin(self) -> None:
        self.submit(partial(self.learn, self.take()))

    def take(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    def learn(self, rows: Sequence[Row]) -> None:
        with self.note_failures():
            lesson = self.teach(rows)
            if lesson is not None:
                self.latest = lesson
                self.changes += lesson.learned > 0

    @contextmanager
    def note_failures(self) -> Iterator[None]:
        try:
            yield
        except CancelledError:
            log.info("learning %s is given up, since the server ends", self.subject)
        except Exception:
            self.failures += 1
            log.exception("learning %s failed, estimates stay as they are", self.subject)
