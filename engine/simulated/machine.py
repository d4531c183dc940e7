"""A simulated machine: how fast its executors are, how much each holds, and a stretch of its work, before the end of
which nothing has to be reported or decided. Knows no rows by name, no trace, no strategy and no clock.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from engine.device import Action


class Cost(Protocol):
    """A device's speed; the bilinear serving-time model of a measured machine is one."""

    def prefill(self, rows: int, length: int, /) -> float:
        """Seconds to read `rows` prompts of `length` tokens, up to their first tokens."""

    def decode(self, rows: int, length: float, iterations: int, /) -> float:
        """Seconds of so many iterations after `length` columns, the mean read of a row; more never take less."""

    def copy(self, length: int, /) -> float:
        """Seconds to copy K and V of `length` tokens out to host memory and in again; 0 where that is unknown."""


INSTANT = 1e-9
"""Seconds by which sums of times may differ from each other and still mean the same moment."""

Pace: TypeAlias = Callable[[float, float], float]
"""(when work begins on the clock, its seconds by the cost) -> the seconds that it takes."""


def keep_pace(now: float, seconds: float) -> float:
    """The Pace of a machine that is always as fast as its cost says."""
    return seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A chunk of prefill, an entry by shape, or some decode iterations."""

    action: Action
    iterations: int
    """Steps of the work: a command that arrives meanwhile waits for the end of the one under way."""
    lasts: Callable[[int], float]
    """Seconds of the first so many iterations."""

    @property
    def seconds(self) -> float:
        return self.lasts(self.iterations)

    def paced(self, pace: Pace, now: float) -> Work:
        """The work on a machine of this pace, begun now."""
        return replace(self, lasts=lambda count: pace(now, self.lasts(count)))

    def cut(self, elapsed: float) -> Work:
        """The part of it that was begun after so many seconds, one iteration at least."""
        counts = range(1, self.iterations)
        return replace(self, iterations=1 + bisect.bisect_left(counts, elapsed - INSTANT, key=self.lasts))


@dataclass(frozen=True, slots=True)
class Machine:
    """The executors to simulate, all alike."""

    cost: Cost
    capacity_tokens: int
    """Tokens of K and V that each can hold."""
    max_num_seqs: int
    """Rows that each can run at once."""
    context_length: int
    """Longest prompt plus answer, in tokens."""
    workers: int = 1
    max_prefill_tokens: int | None = None
    """Cells of a chunk of prefill; None reads every group at once."""
    prefix_cache_tokens: int = 0
    """Tokens of prompts whose K and V are kept in host memory, for all executors."""
    reads_padding: bool = True
    """Whether an iteration reads all columns of the batch for each row, else a row's own tokens only."""
    pace: Pace = keep_pace
    """How its speed changes about that of `cost`, in seconds after the simulation's begin."""
    runs_ahead: bool = False
    """Whether executors begin their next step before the scheduler has answered the last, as threads do: what is sent
    when a row ends finds an iteration under way. Else the scheduler takes no time at all."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request that an executor can hold, prompt and answer together."""
        return min(self.context_length, self.capacity_tokens)
