"""The workload `sharegpt`: the first question and answer of each conversation, as `vllm bench serve` takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.workload.lines import TRUNCATED, at, read_text
from loadgen.workload.sample import Sample
from models.errors import UserError

LEAST, LONGEST = 4, 1024
"""Tokens that questions and answers must have, and that questions may have at most."""

HUMANS = ("human", "user")
HINT = f"the file must be one JSON list; {TRUNCATED}"


def read_sharegpt(path: Path) -> list[Sample]:
    """A list of objects with `conversations`: `from` and `value`; those without an answer are left out.

    Raises UserError.
    """
    samples = [sample for line, entry in _entries(path) for sample in _first_exchange(path, line, entry)]
    if not samples:
        raise UserError(f"{path}: holds no conversation with a question and an answer")
    return samples


def fits(question: int, answer: int, longest: int | None) -> bool:
    """Whether an exchange of so many tokens is used: `vllm bench serve` leaves out what is very short or long.

    Question and answer together may have twice the tokens that a question may have.
    """
    longest = LONGEST if longest is None else longest
    return LEAST <= question <= longest and answer >= LEAST and question + answer <= 2 * longest


def _first_exchange(path: Path, line: int, entry: Any) -> Iterator[Sample]:
    turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise at(path, line, "must be an object with a list of conversations, as ShareGPT files have")
    if not all(isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in turns):
        raise at(path, line, "conversations: every turn must be an object with from and value")
    for question, answer in zip(turns, turns[1:], strict=False):
        if question.get("from") in HUMANS and answer.get("from") not in HUMANS:
            if question["value"].strip() and answer["value"].strip():
                yield Sample("sharegpt", "", question["value"], answer["value"])
            return


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list, each with the line it begins in: json.load would not tell where it stood."""
    text = _Cursor(path)
    text.expect("[")
    while not text.at("]"):
        yield text.value()
        if not text.at("]"):
            text.expect(",")
    text.expect("]")
    text.expect("")


class _Cursor:
    """A place in a JSON text, always at the begin of something, and the line of it."""

    def __init__(self, path: Path) -> None:
        self._path, self._text = path, read_text(path)
        self._decoder = json.JSONDecoder()
        self._place, self._line = 0, 1
        self._go(0)

    def at(self, mark: str) -> bool:
        return self._text.startswith(mark, self._place)

    def expect(self, mark: str) -> None:
        """Pass the mark, or the end where it is empty; raises UserError when something else is there."""
        there = self._text[self._place : self._place + 1]
        if there != mark:
            wanted, found = repr(mark) if mark else "the end", repr(there) if there else "the end of the file"
            raise at(self._path, self._line, f"expected {wanted} and found {found}; {HINT}")
        self._go(self._place + len(mark))

    def value(self) -> tuple[int, Any]:
        """The line where a value begins, and that value."""
        line = self._line
        try:
            value, end = self._decoder.raw_decode(self._text, self._place)
        except json.JSONDecodeError as error:
            raise at(self._path, error.lineno, f"is not valid JSON ({error.msg}); {HINT}") from None
        except RecursionError:
            raise at(self._path, line, "is nested too deeply") from None
        self._go(end)
        return line, value

    def _go(self, place: int) -> None:
        while self._text[place : place + 1].isspace():
            place += 1
        self._line += self._text.count("\n", self._place, place)
        self._place = place
