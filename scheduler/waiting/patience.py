"""How far requests may be overtaken by cheaper ones. What is done with it is in turns.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """Numbers found by simulation (docs/lengthwise-strategy.md). Work is that of scheduler.work."""

    share: float = 0.8
    """β: how much may be served before a request although it came later, as a share of what first come, first served
    would have let others wait."""
    near: float = 1.25
    """Requests up to this many times as expensive as the cheapest are its equals; the one that fits best goes first."""
    outlier_factor: float = 3.0
    """How many times as much may be served before one that is more expensive than nearly all."""

    def __post_init__(self) -> None:
        if self.share < 0 or min(self.near, self.outlier_factor) < 1:
            raise ValueError(f"patience must not be negative, and its factors not less than 1: {self}")
