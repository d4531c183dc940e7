"""A waiting request's progress in line: how a client asks a stream for it, and the comment that tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "x-lengthwise-progress"
"""Request header by which a client asks for progress in a stream, with the value 1."""

_COMMENT = re.compile(r"queued place=(?P<place>\d+)(?: expected_wait_s=(?P<wait>\d+\.\d+))?")


@dataclass(frozen=True, slots=True)
class Progress:
    """A place in line, 1 for the next to start, and the expected wait in seconds, None where it is unknown."""

    place: int
    expected_wait_s: float | None

    def comment(self) -> str:
        """The text of the comment."""
        wait = "" if self.expected_wait_s is None else f" expected_wait_s={self.expected_wait_s:.1f}"
        return f"queued place={self.place}{wait}"


def progress_in(comment: str) -> Progress | None:
    """What a comment tells; None for a comment of another kind."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    return Progress(int(found["place"]), None if found["wait"] is None else float(found["wait"]))
