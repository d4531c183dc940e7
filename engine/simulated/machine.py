"""A simulated machine and its work."""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias

from engine.device import Action


class Cost(Protocol):
    """As a measured machine's bilinear model."""

    def prefill(self, rows: int, length: int, /) -> float:
        """With first tokens."""

    def decode(self, rows: int, length: float, iterations: int, /) -> float:
        """`iterations` after `length` mean columns; monotone."""

    def copy(self, length: int, /) -> float:
        """To host memory and back; 0 if unknown."""


INSTANT = 1e-9  # seconds within which times are equal

Pace: TypeAlias = Callable[[float, float], float]  # (clock time, nominal seconds) -> seconds


def keep_pace(now: float, seconds: float) -> float:
    return seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A chunk, entry, or some iterations."""

    action: Action
    iterations: int  # interruptible between
    lasts: Callable[[int], float]  # seconds of the first iterations

    @property
    def seconds(self) -> float:
        return self.lasts(self.iterations)

    def paced(self, pace: Pace, now: float) -> Self:
        return replace(self, lasts=lambda count: pace(now, self.lasts(count)))

    def cut(self, elapsed: float) -> Self:
        """Within `elapsed` seconds, at least one iteration."""
        counts = range(1, self.iterations)
        return replace(self, iterations=1 + bisect.bisect_left(counts, elapsed - INSTANT, key=self.lasts))


@dataclass(frozen=True, slots=True)
class Machine:
    cost: Cost
    capacity_tokens: int
    max_num_seqs: int
    context_length: int
    workers: int = 1
    max_prefill_tokens: int | None = None  # of a chunk; None: unbounded
    prefix_cache_tokens: int = 0  # for all executors
    reads_padding: bool = True  # whole window
    pace: Pace = keep_pace  # over time
    runs_ahead: bool = False  # steps begin before the scheduler answers

    @property
    def longest(self) -> int:
        return min(self.context_length, self.capacity_tokens)
