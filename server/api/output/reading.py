"""The text of an answer -> what it says and the tools that it calls, piece by piece as it comes.

A text that a grammar made is read by GuaranteedCalls, which passes arguments on as they come. In any other text markup
may be wrong or never end, so FoundCalls tells a call when it is whole; what turns out to be none is text after all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from models.text_stream import overlap
from server.api.input.tools import BETWEEN, CALL_TAIL, CLOSE, OPEN, Toolbox


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call's arguments; the first of a call has its id and its name."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


Piece: TypeAlias = TextPiece | CallPiece


class PlainText:
    """For an answer that calls no tools: all of it is text."""

    calls, ended = 0, False
    """How many calls have begun so far; whether the answer is over by what it says, though its text goes on."""

    def push(self, text: str, *, last: bool) -> list[Piece]:
        """The pieces of the next part of the text; `last` also brings what was held back."""
        return [TextPiece(text)] if text else []


class GuaranteedCalls:
    """For a text that is calls from its first character on, each exactly as tool_words has it, or else none at all.

    A model that must call goes on calling until its limit, so a call that equals an earlier one ends the answer and is
    left out: a later call is held back for as long as it may become one.
    """

    def __init__(self) -> None:
        self.calls, self.ended = 0, False
        self._held = ""
        self._plain = False  # an answer without calls
        self._name: str | None = None  # of the call whose arguments come; None between calls
        self._arguments = ""  # of that call so far
        self._told = False  # whether that call has been passed on
        self._earlier: set[tuple[str, str]] = set()

    def push(self, text: str, *, last: bool) -> list[Piece]:
        if self.ended:
            return []
        self._held += text
        self._plain = self._plain or (self.calls == 0 and not OPEN.startswith(self._held[: len(OPEN)]))
        if self._plain:
            said, self._held = self._held, ""
            return [TextPiece(said)] if said else []
        return [*self._advance(), *(self._rest() if last else ())]

    def _advance(self) -> Iterator[Piece]:
        while not self.ended:
            if self._name is None:
                head = _HEAD.match(self._held)
                if head is None:
                    return
                self._held, self._name = self._held[head.end() :], head["name"]
                self._arguments, self._told = "", False
            part, whole, self._held = split(self._held, CALL_TAIL)
            self._arguments += part
            name, arguments = self._name, self._arguments
            if not self._told:
                if whole and (name, arguments) in self._earlier:
                    self.ended = True
                    return
                if not whole and any(one == name and text.startswith(arguments) for one, text in self._earlier):
                    return
                self._told, part = True, arguments
                self.calls += 1
                yield CallPiece(self.calls - 1, "", new_id(), name)
            if part:
                yield CallPiece(self.calls - 1, part)
            if not whole:
                return
            self._earlier.add((name, arguments))
            self._name = None

    def _rest(self) -> Iterator[Piece]:
        """The answer was cut short; a brace may be the last of the arguments, or the one behind them."""
        if self._told and self._name is not None and self._held == CALL_TAIL[0] and try_json(self._arguments) is None:
            yield CallPiece(self.calls - 1, self._held)


_HEAD = re.compile(rf'(?:{BETWEEN})?{OPEN}\n\{{"name": "(?P<name>[^"]*)", "arguments": ')
"""A call of tool_words up to its arguments; names hold nothing that JSON would have to escape."""


class FoundCalls:
    """For a text that may hold calls anywhere, of these names, right or wrong."""

    def __init__(self, names: Collection[str], *, parallel: bool = True) -> None:
        self.calls, self.ended = 0, False
        self._names = names
        self._most = None if parallel else 1
        self._held = ""
        self._body: str | None = None  # what has come of a call; None outside
        self._space = ""  # white space that counts only if more text follows

    def push(self, text: str, *, last: bool) -> list[Piece]:
        self._held += text
        pieces = [*self._advance(), *(self._rest() if last else ())]
        return [piece for piece in pieces if not isinstance(piece, TextPiece) or piece.text]

    def _advance(self) -> Iterator[Piece]:
        found = True
        while found:
            if self._body is None:
                text, found, self._held = split(self._held, OPEN)
                yield self._say(text)
                self._body = "" if found else None
            else:
                text, found, self._held = split(self._held, CLOSE)
                self._body += text
                if found:
                    yield from self._call(self._body, CLOSE)
                    self._body = None

    def _rest(self) -> Iterator[Piece]:
        """The text has ended: some models leave out the last mark."""
        held, self._held = self._held, ""
        if self._body is not None:
            yield from self._call(self._body + held, "")
        else:
            yield self._say(held)
        if not self.calls:
            yield TextPiece(self._space)

    def _say(self, text: str) -> TextPiece:
        """White space at the end is held back: around calls it means nothing."""
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        return TextPiece(said)

    def _call(self, body: str, close: str) -> Iterator[Piece]:
        calls = _parsed(body, self._names)
        if calls is None:
            yield self._say(f"{OPEN}{body}{close}")
            return
        self._space = ""
        for name, arguments in calls if self._most is None else calls[: self._most - self.calls]:
            yield CallPiece(self.calls, arguments, new_id(), name)
            self.calls += 1


Reader: TypeAlias = PlainText | GuaranteedCalls | FoundCalls
"""Reads one answer."""


def reader_of(tools: Toolbox, *, guaranteed: bool) -> Reader:
    """The reader of an answer that may call these tools; `guaranteed` where a grammar makes it."""
    if not tools:
        return PlainText()
    return GuaranteedCalls() if guaranteed else FoundCalls(tools.names, parallel=tools.parallel)


def split(text: str, mark: str) -> tuple[str, bool, str]:
    """The text before a mark, whether the mark is there, and what is left: what follows it, or may become it."""
    before, found, after = text.partition(mark)
    if found:
        return before, True, after
    keep = overlap(text, mark)
    return text[: len(text) - keep], False, text[len(text) - keep :]


def new_id() -> str:
    """A name for a call, which its result will bear."""
    return f"call_{secrets.token_hex(12)}"


def try_json(text: str) -> Any:
    """The value of a JSON text; None for what is none, as an answer that was cut short may leave it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _parsed(body: str, names: Collection[str]) -> list[tuple[str, str]] | None:
    """Names and arguments of a call, or of a list of calls, which some models write; None when it is neither."""
    value = try_json(body)
    calls = [_read_call(item, names) for item in (value if isinstance(value, list) else [value])]
    whole = [call for call in calls if call is not None]
    return whole if whole and len(whole) == len(calls) else None


def _read_call(value: Any, names: Collection[str]) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return name, orjson.dumps(arguments).decode()
