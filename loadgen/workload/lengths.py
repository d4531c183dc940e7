"""Traces as arrival times and lengths: all that a simulation needs, and what trace workloads are made of.

It knows no prompt. A trace is read in its format, put in order, cut and scaled.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from models.errors import UserError
from models.progress import say

T = TypeVar("T")

TRUNCATED = "the file may be truncated"
GZIP = b"\x1f\x8b"
"""Bytes that a compressed file begins with."""


def at(path: Path, line: int, reason: str) -> UserError:
    """The error for one line of a file, counted from 1."""
    return UserError(f"{path}, line {line}: {reason}")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line with its number, its end included; raises UserError where it is not UTF-8."""
    number, raw = 0, b""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        packed = "; it is compressed: unpack it with gunzip first" if number == 1 and raw.startswith(GZIP) else ""
        raise at(path, number, f"is not UTF-8 text: {error.reason} at byte {error.start}{packed}") from None


def json_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """The values of a JSONL file, all of one type, with their lines; empty lines are passed over."""
    decoder = msgspec.json.Decoder(kind)
    for number, text in text_lines(path):
        if text.strip():
            try:
                yield number, decoder.decode(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise at(path, number, f"is not the JSON that is wanted: {error}") from None


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file that have at least `columns`, with their lines."""
    for number, row in json_lines(path, dict[str, Any]):
        if missing := [key for key in columns if key not in row]:
            raise at(path, number, f"lacks {', '.join(missing)}")
        yield number, row


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows below a header that has at least `columns`, by column, with the numbers of their last lines; empty lines
    are passed over."""
    reader = csv.reader((text for _, text in text_lines(path)), strict=True)
    rows = ([field.strip() for field in row] for row in reader if row)
    try:
        header = next(rows, [])
        if missing := [column for column in columns if column not in header]:
            raise at(path, 1, f"the header must name {', '.join(columns)}; it lacks {', '.join(missing)}")
        for row in rows:
            if len(row) != len(header):
                found = f"has {len(row)} fields, the header has {len(header)}; {TRUNCATED}"
                raise at(path, reader.line_num, found)
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise at(path, reader.line_num, f"is not valid CSV: {error}") from None


Time: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Tokens: TypeAlias = Annotated[float, Meta(ge=0, le=10_000_000)]  # some files have 15.0; more is a damaged number


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: seconds after the start, tokens of its prompt, tokens of its answer, and who sends it."""

    arrival: float
    input_length: int
    output_length: int
    client: str = ""
    chat: str = ""  # the request's id, in traces that name the turn before each
    parent: str = ""  # the `chat` of the turn before; empty for the first


@dataclass(frozen=True, slots=True)
class Format:
    """How to read rows; columns of time, prompt tokens and answer tokens, then others that must be there."""

    rows: Callable[[Path, Sequence[str]], Iterator[tuple[int, Mapping[str, Any]]]]
    columns: tuple[str, ...]
    per_second: float = 1.0
    """Units of time in a second, where times are numbers."""
    foreign: str | None = None  # a column that only Qwen-Bailian's rows have

    def read(self, path: Path) -> Iterator[Lengths]:
        """Every request of a file, its arrival by the trace's own clock; raises UserError."""
        time, prompt, answer, *_ = self.columns
        for line, row in self.rows(path, self.columns):
            if self.foreign in row:
                raise at(path, line, f"has {self.foreign}: its times are seconds, so name it qwen-bailian")
            parent = str(row.get("parent_chat_id", NO_PARENT))
            yield Lengths(
                _seconds(path, line, time, row[time], self.per_second),
                _tokens(path, line, prompt, row[prompt]),
                _tokens(path, line, answer, row[answer]),
                chat=str(row.get("chat_id", "")),
                parent="" if parent == NO_PARENT else parent,
            )


def _seconds(path: Path, line: int, name: str, value: Any, per_second: float) -> float:
    """The seconds of a time, which is a number or a date, in UTC unless it says otherwise."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, Time, strict=False) / per_second
    with suppress(TypeError, ValueError):
        date = datetime.fromisoformat(value)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    raise at(path, line, f"{name}: {value!r} is neither a number nor a date like 2023-11-16 18:15:46.680")


def _tokens(path: Path, line: int, name: str, value: Any) -> int:
    try:
        number: float = msgspec.convert(value, Tokens, strict=False)
    except msgspec.ValidationError as error:
        raise at(path, line, f"{name}: {value!r}: {error}") from None
    if number != int(number):
        raise at(path, line, f"{name}: {value!r} is no whole number")
    return int(number)


NO_PARENT = "-1"
LENGTH_COLUMNS = ("timestamp", "input_length", "output_length")

TRACES: Mapping[str, Format] = {
    "azure": Format(csv_rows, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    "burstgpt": Format(csv_rows, ("Timestamp", "Request tokens", "Response tokens")),
    "servegen": Format(csv_rows, ("timestamp", "input_tokens", "output_tokens")),
    # Of both, hash_ids, the shared prefixes, are not used.
    "mooncake": Format(json_rows, LENGTH_COLUMNS, per_second=1000.0, foreign="chat_id"),
    "qwen-bailian": Format(json_rows, (*LENGTH_COLUMNS, "chat_id")),
}


def recognize(path: Path) -> Format:
    """The format that a file's first line shows; raises UserError where that is none of them."""
    first = next((text for _, text in text_lines(path) if text.strip()), "")
    if first.lstrip().startswith("{"):
        return TRACES["qwen-bailian" if '"chat_id"' in first else "mooncake"]
    header = {field.strip().strip('"') for field in first.split(",")}
    tables = [one for one in TRACES.values() if one.rows is csv_rows]
    for one in tables:
        if header.issuperset(one.columns):
            return one
    known = " or ".join(", ".join(one.columns) for one in tables)
    raise at(path, 1, f"is no trace of a known format: the header must name {known}, or each line be a JSON object")


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a trace to play, and how."""

    start: float = 0.0
    """Seconds after the trace's first request, in the trace's time."""
    duration: float = math.inf
    """Seconds from there, in the trace's time."""
    speed: float = 1.0
    """2 plays the trace in half its time."""
    max_input: int | None = None
    """Longer prompts are clipped to this many tokens."""
    max_output: int | None = None
    """Longer answers are clipped to this many tokens."""
    limit: int | None = None
    """At most this many requests, the first ones."""


WHOLE = Cut()


def load_trace(path: Path, kind: str | None = None, cut: Cut = WHOLE) -> list[Lengths]:
    """Requests of the trace in the order they arrive; `kind` is a name in TRACES, None: what the file shows.

    The whole file is checked, also what the cut leaves out. Requests of no tokens, or with an answer of none, failed:
    they are left out, and a line says how many. Raises UserError for a wrong file and for a cut that holds no request.
    """
    form = recognize(path) if kind is None else TRACES[kind]
    read = list(form.read(path))
    found = sorted((one for one in read if one.input_length and one.output_length), key=lambda one: one.arrival)
    if not found:
        raise UserError(f"{path}: holds no requests with an answer")
    tell_left_out(path, len(read) - len(found), len(read), "requests that failed, with 0 tokens")
    origin = found[0].arrival + cut.start
    chosen = [one for one in found if 0 <= one.arrival - origin < cut.duration]
    if not chosen:
        lasts = found[-1].arrival - found[0].arrival
        raise UserError(
            f"{path}: no request arrives in the {cut.duration:g} s from second {cut.start:g} on "
            f"(--trace-start, --trace-duration); the trace lasts {lasts:.0f} s"
        )
    return [
        replace(
            one,
            arrival=(one.arrival - origin) / cut.speed,
            input_length=clip(one.input_length, cut.max_input),
            output_length=clip(one.output_length, cut.max_output),
        )
        for one in chosen[: cut.limit]
    ]


def tell_left_out(path: Path, count: int, of: int, what: str) -> None:
    """Say how many rows of a file are not used, unless it is none."""
    if count:
        say(f"{path}: {count} of {of} rows are left out: {what}")


def clip(length: int, bound: int | None) -> int:
    """The length, or the bound where it is longer."""
    return length if bound is None else min(length, bound)
