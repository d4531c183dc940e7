"""Rows to train the length predictor from: JSONL files of requests and their lengths.

It knows the files' fields and their errors. It neither embeds nor trains.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from models.errors import UserError
from scheduler.length.features import LengthQuery


class Counter(Protocol):
    """Counts tokens as the served model does; models.text.Text is one."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A request and the length of its answer in tokens, the end token included."""

    instruction: str
    user_input: str
    user_input_length: int
    length: int
    cut: bool = False
    """Whether the answer would have become longer."""
    tokens: tuple[int, ...] = ()
    """Tokens of instruction and user input."""

    @property
    def query(self) -> LengthQuery:
        """The request as predictors are asked about it."""
        return LengthQuery(self.instruction, self.user_input, self.user_input_length, self.length, self.tokens)


class _Line(msgspec.Struct):
    """One line of a file; `reference` is an answer whose tokens are counted where there is no `length`."""

    instruction: str
    input: str
    length: int | None = None
    reference: str | None = None
    cut: bool = False


def read_rows(path: Path, counter: Counter, *, sample: int | None, seed: int) -> list[TrainingRow]:
    """All rows of a file, or `sample` of them at random. Raises UserError."""
    lines = list(_lines(path))
    if sample is not None and sample < len(lines):
        lines = random.Random(seed).sample(lines, sample)
    return [_row(line, counter) for line in lines]


def _lines(path: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _checked(decoder.decode(text), f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}:{number}: {error}; each line is an object with instruction, input, and length or reference"
        ) from error


def _checked(line: _Line, place: str) -> _Line:
    if line.length is None and line.reference is None:
        raise UserError(f"{place}: neither length nor reference; one of them says how long the answer is")
    if line.length is not None and line.length < 1:
        raise UserError(f"{place}: length {line.length} is not at least 1")
    return line


def _row(line: _Line, counter: Counter) -> TrainingRow:
    length = line.length if line.length is not None else len(counter.encode(line.reference or "")) + 1
    user_input = counter.encode(line.input)
    tokens = (*(counter.encode(line.instruction) if line.instruction else ()), *user_input)
    return TrainingRow(line.instruction, line.input, len(user_input), length, line.cut, tokens)
