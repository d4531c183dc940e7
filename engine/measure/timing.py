"""Measured durations of one device, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Timing:
    """A prefill, a decode iteration, or a round trip of KV caches to host memory."""

    rows: int
    length: int  # of each row: prompt tokens; columns read with the new one; tokens of KV cache
    seconds: float

    def __post_init__(self) -> None:
        """Raises ValueError for impossible values."""
        if self.rows < 1 or self.length < 0 or not 0 <= self.seconds < inf:
            raise ValueError(f"a timing is of one row or more and not negative: {self}")


@dataclass(frozen=True, slots=True)
class SliceTiming:
    """A prefill and the `iterations` decode steps after it."""

    rows: int
    length: int  # prompt tokens of each row
    iterations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    prefill: tuple[Timing, ...]
    decode: tuple[Timing, ...]
    slices: tuple[SliceTiming, ...] = ()
    copies: tuple[Timing, ...] = ()  # KV copies both ways, all rows of a batch together
