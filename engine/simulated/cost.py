"""The seconds that a simulated device's work takes. Knows no rows by name and no time of day."""

from __future__ import annotations

from typing import Protocol


class Cost(Protocol):
    """A device's speed; the bilinear serving-time model of a measured machine is one."""

    def prefill(self, rows: int, length: int, /) -> float:
        """Seconds to read `rows` prompts of `length` tokens, up to their first tokens."""
        ...

    def decode(self, rows: int, length: int, iterations: int, /) -> float:
        """Seconds of so many iterations after `length` columns; more iterations never take less."""
        ...

    def copy(self, length: int, /) -> float:
        """Seconds to copy K and V of `length` tokens out to host memory and in again; 0 where that is unknown."""
        ...
