"""The end that a server expects of an answer when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foretold:
    """The end of an answer as a server expected it, in seconds after the request came."""

    low: float
    median: float
    high: float
    wait: float = 0.0
    """Seconds of these before it was expected to start."""
    tokens: float | None = None
    """Length of the answer that was expected."""

    def with_length(self, tokens: int) -> float | None:
        """The median had the length been known: what comes after the wait, as many times longer."""
        return self.wait + (self.median - self.wait) * tokens / self.tokens if self.tokens else None
