"""How near answers came to the ends that were expected of them when they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadgen.client.foretold import Foretold


@dataclass(frozen=True, slots=True)
class Ending:
    """An answer that was foretold and is complete."""

    foretold: Foretold
    seconds: float
    """From its request to its end."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors are medians of the distance from the true time, as shares of that."""

    answers: int
    error: float
    error_with_lengths: float | None
    """The error had lengths been known: what the wait and the speed make of it. None where no length was foretold."""
    inside: float
    """Share of the answers that ended within the interval."""


def judge(endings: Sequence[Ending]) -> Accuracy | None:
    """How well ends were foretold; None where none was."""
    ended = [one for one in endings if one.seconds > 0]
    if not ended:
        return None
    known = [(one, end) for one in ended if (end := one.foretold.with_length(one.tokens)) is not None]
    return Accuracy(
        answers=len(ended),
        error=median(_error(one, one.foretold.median) for one in ended),
        error_with_lengths=median(_error(one, end) for one, end in known) if known else None,
        inside=sum(one.foretold.low <= one.seconds <= one.foretold.high for one in ended) / len(ended),
    )


def _error(one: Ending, expected: float) -> float:
    return abs(expected - one.seconds) / one.seconds
