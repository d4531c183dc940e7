"""An answer's text as its tokens come: decoding that never emits half a character, and the search for stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from models.token_bytes import count_cut_off

REPLACEMENT = "\ufffd"
"""The character that decoders put where bytes do not, or not yet, make a character."""

LONGEST_WAIT = 64
"""Tokens after which bytes that still make no character are shown as U+FFFD: real characters need a few at most,
and decoding an endless run of stray bytes again at each token would cost quadratic time."""


class Decoder(Protocol):
    """The part of models.text.Text that turns token ids into text."""

    def decode(self, ids: Sequence[int]) -> str: ...
    def said_bytes(self, token_id: int) -> bytes: ...


class TextStream:
    """Decodes one answer token by token. The pieces joined equal the decoding of the whole, but for a character that is
    cut off at its end.
    """

    def __init__(self, text: Decoder) -> None:
        self._text = text
        self._ids: list[int] = []
        self._shown = 0  # ids [0, shown) are out
        self._from = 0  # ids [from, shown) are decoded again as context, since spacing can depend on them

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._ids.append(token_id)
        piece = self._pending()
        waits = len(self._ids) - self._shown
        if waits < LONGEST_WAIT and (not piece or piece.endswith(REPLACEMENT)):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return piece

    def flush(self) -> str:
        """The rest of the text when no token follows, without a character that is cut off at its end."""
        piece = self._pending()
        if piece.endswith(REPLACEMENT):
            piece = self._whole()
        self._from = self._shown = len(self._ids)
        return piece

    def _pending(self, end: int | None = None) -> str:
        context = self._text.decode(self._ids[self._from : self._shown])
        return self._text.decode(self._ids[self._from : end])[len(context) :]

    def _whole(self) -> str:
        """The pending text without the bytes at its end that only begin a character.

        Bytes that can never become one stay, as U+FFFD.
        """
        said = [(place, self._text.said_bytes(self._ids[place])) for place in range(self._shown, len(self._ids))]
        cut, end = count_cut_off(b"".join(data for _, data in said)), len(self._ids)
        while cut and len(said[-1][1]) <= cut:
            end, data = said.pop()
            cut -= len(data)
        piece = self._pending(end)
        return piece[:-1] if cut else piece


class StopMatcher:
    """Watches a text for stop strings; holds back what may become one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Returns the text that may be shown, and the stop string that ends it, if one does."""
        text = self._held + piece
        found = min(((text.find(stop), stop) for stop in self._stops if stop in text), default=None)
        if found is not None:
            at, stop = found
            self._held = ""
            return text[: at + len(stop) if self._include else at], stop
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text that was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, but is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
