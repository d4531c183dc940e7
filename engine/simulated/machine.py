"""A simulated machine's speed and capacity, and a unit of its work, within which nothing is reported or decided."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from engine.device import Action


class Cost(Protocol):
    """A device's speed, such as a measured machine's bilinear model."""

    def prefill(self, rows: int, length: int, /) -> float:
        """Seconds to prefill `rows` prompts of `length` tokens, first tokens included."""

    def decode(self, rows: int, length: float, iterations: int, /) -> float:
        """Seconds of `iterations` after `length` columns, the mean read of a row; monotone in `iterations`."""

    def copy(self, length: int, /) -> float:
        """Seconds to copy a KV cache of `length` tokens to host memory and back; 0 if unknown."""


INSTANT = 1e-9  # seconds within which sums of times mean the same moment

Pace: TypeAlias = Callable[[float, float], float]  # (clock time of the begin, seconds by the cost) -> seconds taken


def keep_pace(now: float, seconds: float) -> float:
    """Exactly as fast as its cost says."""
    return seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A prefill chunk, an entry by shape, or some decode iterations."""

    action: Action
    iterations: int  # a command that arrives meanwhile waits for the current one
    lasts: Callable[[int], float]  # seconds of the first iterations

    @property
    def seconds(self) -> float:
        return self.lasts(self.iterations)

    def paced(self, pace: Pace, now: float) -> Work:
        """The work begun now on a machine of this pace."""
        return replace(self, lasts=lambda count: pace(now, self.lasts(count)))

    def cut(self, elapsed: float) -> Work:
        """The part begun within `elapsed` seconds, at least one iteration."""
        counts = range(1, self.iterations)
        return replace(self, iterations=1 + bisect.bisect_left(counts, elapsed - INSTANT, key=self.lasts))


@dataclass(frozen=True, slots=True)
class Machine:
    """Executors, all alike."""

    cost: Cost
    capacity_tokens: int  # of each
    max_num_seqs: int  # of each
    context_length: int  # tokens of prompt and answer
    workers: int = 1
    max_prefill_tokens: int | None = None  # cells of a prefill chunk; None reads every group at once
    prefix_cache_tokens: int = 0  # in host memory, for all executors
    reads_padding: bool = True  # each row reads all columns, not only its own
    pace: Pace = keep_pace  # its speed over time, relative to `cost`
    runs_ahead: bool = False  # executors begin a step before the scheduler has answered the last, as threads do

    @property
    def longest(self) -> int:
        """Tokens, prompt and answer, that an executor can hold for one request."""
        return min(self.context_length, self.capacity_tokens)
