"""A stream read by the rule of `vllm bench serve`, which trims what arrives before it looks for the ends of events."""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any

import orjson

END = "[DONE]"


class TrimmingReader:
    """Takes bytes as they arrive and gives the JSON of the events that it believes it has read.

    Each piece is trimmed by itself. What a blank line ends is an event, and so is a rest that is `data: ` with valid
    JSON or with the end marker. A comment is passed over only where it begins an event.
    """

    def __init__(self) -> None:
        self.ended = False
        """Whether the end marker has come."""
        self._decoder = getincrementaldecoder("utf-8")()
        self._rest = ""

    def feed(self, piece: bytes) -> list[Any]:
        """The events that this piece completes. Raises orjson.JSONDecodeError where it is wrong."""
        trimmed = piece.strip()
        if not trimmed:
            return []
        *frames, self._rest = (self._rest + self._decoder.decode(trimmed)).split("\n\n")
        if _is_whole(self._rest):
            frames.append(self._rest)
            self._rest = ""
        return list(self._events(frames))

    def _events(self, frames: list[str]) -> Iterator[Any]:
        for frame in map(str.strip, frames):
            data = frame.removeprefix("data: ")
            if data == END:
                self.ended = True
            elif frame and not frame.startswith(":"):
                yield orjson.loads(data)


def _is_whole(frame: str) -> bool:
    data = frame.removeprefix("data: ").strip()
    if not frame.startswith("data: ") or data == END:
        return data == END
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
