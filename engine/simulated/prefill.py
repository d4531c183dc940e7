"""A group of prompts that a simulated device reads together, in chunks of columns. Knows no time but its own cost."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kv.prefix_cache import PrefixCache
from engine.messages import Tally
from engine.simulated.cost import Cost
from engine.simulated.row import SimulatedKv, SimulatedRow


class SimulatedPrefill:
    """One group under way; rows whose prompts have been read leave it."""

    def __init__(self, rows: Iterable[SimulatedRow], max_tokens: int, prefixes: PrefixCache[SimulatedKv]) -> None:
        self.rows = sorted(rows, key=lambda row: -row.length)
        self._max_tokens = max_tokens
        self._prefixes = prefixes
        prompts = [(row.spec.prompt, row.spec.cache_scope) for row in self.rows]
        found = prefixes.find(prompts, lambda length: all(length in row.group.terms.keep_kv for row in self.rows))
        self._kept = self._done = prefixes.chunk * len(found[0])
        for row in self.rows:
            row.cached_prompt = self._kept

    def seconds(self, cost: Cost) -> float:
        """Duration of the next chunk; those of a group whose rows are equally long add up to the group's. The first one
        begins with the copy of what was kept of earlier prompts.
        """
        rows = len(self.rows)
        before = cost.prefill(rows, self._done) if self._done else 0.0
        copying = cost.copy(rows * self._kept) if self._kept and self._done == self._kept else 0.0
        return copying + cost.prefill(rows, self._end) - before

    def advance(self) -> tuple[list[SimulatedRow], Tally]:
        """Read the next chunk; returns the rows whose prompts ended in it, and what was computed."""
        begin, self._done = self._done, self._end
        end = self._done
        read = sum(min(row.length, end) - begin for row in self.rows)
        cached = len(self.rows) * self._kept if begin == self._kept else 0
        tally = Tally(prompt=read, pad=len(self.rows) * (end - begin) - read, cached=cached)
        still = sum(row.length > end for row in self.rows)
        ended = self.rows[still:]
        for row in ended:
            self._prefixes.keep(row.spec.prompt, row.spec.cache_scope, _block)
        del self.rows[still:]
        return ended, tally

    def drop(self, row: SimulatedRow) -> None:
        """Take a row out, if it is here."""
        self.rows = [other for other in self.rows if other is not row]

    @property
    def _end(self) -> int:
        chunk = self._prefixes.chunk
        columns = max(chunk, self._max_tokens // len(self.rows) // chunk * chunk)
        return min(self._done + columns, self.rows[0].length)


def _block(columns: slice) -> SimulatedKv:
    return SimulatedKv(columns.stop - columns.start, in_host_memory=True)
