"""How far requests may be overtaken by cheaper ones. What is done with it is in turns.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Numbers found by simulation (docs/lengthwise-strategy.md). Work is that of scheduler.work."""

    backlog: float = 0.75
    """β: of the work that waits now, how much may be served before a request although it came later."""
    own: float = 0.5
    """κ: the same as a share of what the device does while a long request runs, less while this one does."""
    near: float = 1.25
    """Requests up to this many times as expensive as the cheapest are its equals; the one that fits best goes first."""

    def __post_init__(self) -> None:
        if self.backlog < 0 or self.own < 0 or self.near < 1:
            raise ValueError(f"patience must not be negative, and what is near not less than 1: {self}")
