"""Measured durations on one device, as plain data. Knows neither how they were measured nor what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one prefill of a batch took, one decode iteration, or one way of its K and V to host memory and back."""

    rows: int
    length: int
    """Prefill: prompt tokens of each row. Decode: columns that the iteration reads, the new token's included. Copies:
    tokens of each row's K and V."""
    seconds: float

    def __post_init__(self) -> None:
        """Raises ValueError for what no device can have taken."""
        if self.rows < 1 or self.length < 0 or not 0 <= self.seconds < inf:
            raise ValueError(f"a timing is of one row or more and not negative: {self}")


@dataclass(frozen=True, slots=True)
class SliceTiming:
    """How long a prefill and the `iterations` decode iterations after it took."""

    rows: int
    length: int
    """Prompt tokens of each row."""
    iterations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """All that was measured on one device."""

    prefill: tuple[Timing, ...]
    decode: tuple[Timing, ...]
    slices: tuple[SliceTiming, ...] = ()
    copies: tuple[Timing, ...] = ()
    """Copies of K and V, both ways, of all rows of a batch together."""
