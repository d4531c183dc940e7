"""When a batch is expected to end: the work that its lines still have, at the speed of the last minute or so.

What lines under way have generated counts too: all begin together, so none would have ended when there is already much
to tell. It knows no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

INTERVAL = 1.0
"""Seconds between two marks at least."""

LEAST_DONE = 0.01
"""Part of the work before which nothing is told: while prompts are read, hardly a token says how fast it goes."""

MARKS = 60
"""Marks that the speed goes back."""


class ExpectedEnd:
    """Of one batch, from when it goes on in this process."""

    def __init__(self, part_done: Callable[[str], float], now: float) -> None:
        """`part_done` tells of a line under way how much of its work, from 0 to 1, is done."""
        self.all_known = False
        """Whether the work of every line has been told."""
        self._works: dict[str, float] = {}  # of each line that has no answer
        self._part_done = part_done
        self._under_way: set[str] = set()
        self._answered = 0.0
        self._marks = deque([(now, 0.0)], MARKS)  # (when, work that was done)

    def expect(self, line: str, work: float) -> None:
        """Note the work of a line that has no answer."""
        self._works[line] = work

    def ask(self, line: str) -> None:
        """Note that a line is under way."""
        self._under_way.add(line)

    def answer(self, line: str, now: float) -> None:
        """Note that a line under way has its answer."""
        self._under_way.remove(line)
        self._answered += self._works.pop(line)
        if now >= self._marks[-1][0] + INTERVAL:
            self._marks.append((now, self._answered + self._begun()))

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the last answer; None before there is a speed, or while the work of some lines is not told."""
        since, before = self._marks[0]
        done = self._answered + self._begun()
        work = self._answered + sum(self._works.values())
        if not self.all_known or done <= before or done < LEAST_DONE * work:
            return None
        return (work - done) * (now - since) / (done - before)

    def _begun(self) -> float:
        """Work that is done of lines under way."""
        return sum(self._works[line] * self._part_done(line) for line in self._under_way)
