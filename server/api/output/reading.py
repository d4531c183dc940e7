"""Splits an answer's text into text and tool calls: GuaranteedCalls where a grammar made it, else FoundCalls, which
reports only whole calls.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from models.text_stream import overlap
from server.api.input.tools import BETWEEN, CALL_TAIL, OPEN, Toolbox
from server.api.output.call_forms import BARE, FORMS, Calls, Form, Schemas, is_open, may_be_bare


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The first piece of a call has its id and name."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


Piece: TypeAlias = str | CallPiece  # a text, or of a call


class PlainText:
    # calls begun; whether the answer is over though its text continues; whether a limit cuts none
    calls, ended, whole = 0, False, False

    def push(self, text: str, *, last: bool) -> list[Piece]:
        """`last` releases what was held back."""
        return [text] if text else []


class GuaranteedCalls:
    """Text that is calls only, or none. A repeated call ends the answer and is held back: a model that must call goes
    on until its limit.
    """

    def __init__(self) -> None:
        self.calls, self.ended = 0, False
        self._held = ""
        self._plain = False  # no calls
        self._name: str | None = None  # of the open call
        self._arguments = ""  # so far
        self._told = False  # passed on
        self._earlier: set[tuple[str, str]] = set()

    @property
    def whole(self) -> bool:
        return self.calls > 0 and (self._name is None or not self._told or try_json(self._arguments) is not None)

    def push(self, text: str, *, last: bool) -> list[Piece]:
        if self.ended:
            return []
        self._held += text
        self._plain = self._plain or (self.calls == 0 and not OPEN.startswith(self._held[: len(OPEN)]))
        if self._plain:
            said, self._held = self._held, ""
            return [said] if said else []
        return [*self._advance(), *(self._rest() if last else ())]

    def _advance(self) -> Iterator[Piece]:
        while not self.ended:
            if self._name is None:
                if (head := _HEAD.match(self._held)) is None:
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
        if self._told and self._name is not None and self._held == CALL_TAIL[0] and try_json(self._arguments) is None:
            self._arguments += self._held
            yield CallPiece(self.calls - 1, self._held)


# up to the arguments; names need no escapes
_HEAD = re.compile(rf'(?:{BETWEEN})?{OPEN}\n\{{"name": "(?P<name>[^"]*)", "arguments": ')


class FoundCalls:
    """Text that may hold calls of any known form."""

    whole = False  # what is cut is text

    def __init__(self, tools: Schemas, *, parallel: bool = True) -> None:
        self.calls, self.ended = 0, False
        self._tools = tools
        self._most = None if parallel else 1
        self._held = ""
        self._form: Form | None = None  # of the open mark
        self._searched = 0  # characters searched for the closing mark
        self._broken = 0  # marks without a call
        self._bare = True  # may be calls without marks
        self._space = ""  # counts only before text

    def push(self, text: str, *, last: bool) -> list[Piece]:
        self._held += text
        pieces = [*self._advance(last=last), *([self._space] if last and not self.calls else ())]
        return [piece for piece in pieces if piece != ""]

    def _advance(self, *, last: bool) -> Iterator[Piece]:
        if self._bare:
            self._bare = may_be_bare(self._held, self._tools)
            if self._bare and not last:
                return
            if self._bare and (calls := BARE.calls(self._held, self._tools)):
                self._held = ""
                yield from self._call(calls)
        found = True
        while found:
            found = False
            if self._form is not None:
                found, pieces = self._close(self._form, last=last)
                yield from pieces
            elif self._broken < MOST_BROKEN and (mark := _MARKS.search(self._held)) is not None:
                yield self._say(self._held[: mark.start()])
                self._held, self._form, self._searched = self._held[mark.end() :], _FORMS[mark[0]], 0
                found = True
            else:
                begin = max(self._held.rfind("<"), self._held.rfind("["))  # first characters of marks
                keeps = begin >= 0 and not last and any(one.startswith(self._held[begin:]) for one in _FORMS)
                end = begin if keeps else len(self._held)
                said, self._held = self._held[:end], self._held[end:]
                yield self._say(said)

    def _close(self, form: Form, *, last: bool) -> tuple[bool, Iterable[Piece]]:
        end = self._held.find(form.close, self._searched) if form.close else -1
        if end < 0 and not last:
            self._searched = max(0, len(self._held) - len(form.close))
            return False, ()
        body = self._held[: end if end >= 0 else len(self._held) - overlap(self._held, form.close)]
        calls = form.calls(body, self._tools)
        if calls is None and end >= 0 and is_open(body):
            self._searched = end + 1
            return True, ()
        self._form = None
        if calls is None:
            self._broken += 1
            return True, [self._say(form.open)]
        self._held = self._held[end + len(form.close) :] if end >= 0 else ""
        return True, self._call(calls)

    def _say(self, text: str) -> str:
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        return said

    def _call(self, calls: Calls) -> Iterator[Piece]:
        self._space = ""
        for name, arguments in calls if self._most is None else calls[: self._most - self.calls]:
            yield CallPiece(self.calls, arguments, new_id(), name)
            self.calls += 1


MOST_BROKEN = 100  # bound of rereading
_FORMS = {form.open: form for form in FORMS}
_MARKS = re.compile("|".join(map(re.escape, _FORMS)))

Reader: TypeAlias = PlainText | GuaranteedCalls | FoundCalls


def reader_of(tools: Toolbox, *, guaranteed: bool) -> Reader:
    """`guaranteed` where a grammar makes it."""
    if not tools.offered:
        return PlainText()
    schemas = {tool.name: tool.parameters for _, tool in tools.callable}
    return GuaranteedCalls() if guaranteed else FoundCalls(schemas, parallel=tools.parallel)


def split(text: str, mark: str) -> tuple[str, bool, str]:
    """Before a mark, whether it is there, and what follows or may become it."""
    before, found, after = text.partition(mark)
    if found:
        return before, True, after
    keep = overlap(text, mark)
    return text[: len(text) - keep], False, text[len(text) - keep :]


def new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def try_json(text: str) -> Any:
    """None if invalid or truncated."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{},]', re.DOTALL)


def complete(text: str) -> str:
    """A truncated object with the values that are complete, as clients read the same stream."""
    closers, safe = "", "{}"
    for found in _STRUCTURE.finditer(text):
        mark = found[0]
        if mark in ("{", "["):
            closers = ("}" if mark == "{" else "]") + closers
        elif mark in ("}", "]"):
            closers = closers[1:]
        if mark in ("{", "[", ","):
            safe = text[: found.end() - (mark == ",")] + closers
    return safe if try_json(text + closers) is None else text + closers
