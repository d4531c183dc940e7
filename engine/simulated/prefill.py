"""A group of prompts that a simulated device reads together, in chunks of columns. Knows no time but its own cost."""

from __future__ import annotations

from collections.abc import Iterable

from engine.messages import Tally
from engine.simulated.cost import Cost
from engine.simulated.row import SimulatedRow


class SimulatedPrefill:
    """One group under way; rows whose prompts have been read leave it."""

    def __init__(self, rows: Iterable[SimulatedRow], max_tokens: int) -> None:
        self.rows = sorted(rows, key=lambda row: -row.length)
        self._max_tokens = max_tokens
        self._done = 0  # columns that have been read

    def seconds(self, cost: Cost) -> float:
        """Duration of the next chunk; those of a group whose rows are equally long add up to the group's."""
        rows = len(self.rows)
        before = cost.prefill(rows, self._done) if self._done else 0.0
        return cost.prefill(rows, self._end) - before

    def advance(self) -> tuple[list[SimulatedRow], Tally]:
        """Read the next chunk; returns the rows whose prompts ended in it, and what was computed."""
        begin, self._done = self._done, self._end
        end = self._done
        read = sum(min(row.length, end) - begin for row in self.rows)
        tally = Tally(prompt=read, pad=len(self.rows) * (end - begin) - read)
        still = sum(row.length > end for row in self.rows)
        ended = self.rows[still:]
        del self.rows[still:]
        return ended, tally

    def drop(self, row: SimulatedRow) -> None:
        """Take a row out, if it is here."""
        self.rows = [other for other in self.rows if other is not row]

    @property
    def _end(self) -> int:
        return min(self._done + max(1, self._max_tokens // len(self.rows)), self.rows[0].length)
