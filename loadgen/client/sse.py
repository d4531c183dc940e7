"""Server-sent events from bytes that arrive in any pieces. Knows the framing and nothing of what it carries.

Source: the HTML standard, section "Server-sent events", parsing an event stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class EventParser:
    """Takes bytes as they come and gives the data of each event that is whole.

    Text is never decoded here, so a cut inside a character does no harm. An event that the stream ends in is dropped.
    """

    on_comment: Callable[[bytes], object] = lambda comment: None
    """Is given the text of each comment."""
    _tail: bytes = b""  # of a line that has no end yet
    _data: list[bytes] = field(default_factory=list)  # lines of an event that has no end yet
    _after_return: bool = False  # whether a line feed would only be the second half of a line's end

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk ends, the lines of each joined by a line feed."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if not chunk:
            return []
        lines = (self._tail + chunk).splitlines(keepends=True)
        self._tail = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._after_return = bool(lines) and not self._tail and lines[-1].endswith(b"\r")
        return [event for line in lines if (event := self._take(line.rstrip(b"\r\n"))) is not None]

    def _take(self, line: bytes) -> bytes | None:
        """Note one line; the data of the event when the line is the blank one that ends it."""
        if line:
            field, _, value = line.partition(b":")  # a comment is a line whose field has no name
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not field:
                self.on_comment(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        return event
