"""Traces as arrival times and lengths."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from models.errors import UserError
from models.progress import say

T = TypeVar("T")

GZIP = b"\x1f\x8b"  # magic bytes


def at(path: Path, line: int, reason: str) -> UserError:
    """An error in a line, from 1."""
    return UserError(f"{path}, line {line}: {reason}")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """With numbers and line ends; raises UserError unless UTF-8."""
    number, raw = 0, b""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check its path") from None
    except UnicodeDecodeError as error:
        packed = "; it is compressed: unpack it with gunzip first" if number == 1 and raw.startswith(GZIP) else ""
        raise at(path, number, f"is not UTF-8 text: {error.reason} at byte {error.start}{packed}") from None


def json_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """With their lines; empty ones are ignored."""
    for number, text in text_lines(path):
        if text.strip():
            yield number, _decode(path, number, text, kind)


def _decode(path: Path, line: int, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise at(path, line, f"is not the JSON that is wanted: {error}") from None


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any] | UserError]]:
    """Objects with at least `columns`, or what is wrong with them, and their lines."""
    for number, text in text_lines(path):
        if text.strip():
            try:
                row = _decode(path, number, text, dict[str, Any])
            except UserError as error:
                yield number, error
                continue
            missing = [key for key in columns if key not in row]
            yield number, at(path, number, f"lacks {', '.join(missing)}") if missing else row


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str] | UserError]]:
    """By column, or what is wrong with a row, with their last lines; empty ones are ignored."""
    reader = csv.reader((text for _, text in text_lines(path)), strict=True)
    rows = ([field.strip() for field in row] for row in reader if row)
    try:
        header = next(rows, [])
        if missing := [column for column in columns if column not in header]:
            raise at(path, 1, f"the header must name {', '.join(columns)}; it lacks {', '.join(missing)}")
        for row in rows:
            if len(row) != len(header):
                found = f"has {len(row)} fields, the header has {len(header)}; the file may be truncated"
                yield reader.line_num, at(path, reader.line_num, found)
            else:
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise at(path, reader.line_num, f"is not valid CSV: {error}") from None


Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Tokens = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]  # some files have 15.0; larger numbers are damage


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Seconds after the start, tokens, and the sender."""

    arrival: float
    input_length: int
    output_length: int
    client: str = ""
    chat: str = ""  # id, where traces name earlier turns
    parent: str = ""  # `chat` of the turn before, or empty
    blocks: tuple[int, ...] = ()  # hashes of the prompt's, where traces have them
    run: str = ""  # of an agent, or empty
    pause: float = 0.0  # seconds after the run's answer before


@dataclass(frozen=True, slots=True)
class Format:
    """Columns of time, prompt and answer tokens, then other required ones."""

    rows: Callable[[Path, Sequence[str]], Iterator[tuple[int, Mapping[str, Any] | UserError]]]
    columns: tuple[str, ...]
    per_second: float = 1.0  # of numeric times
    foreign: str | None = None  # only in Qwen-Bailian's rows

    def read(self, path: Path) -> Iterator[RequestLengths | UserError]:
        """By the trace's own clock, and what is wrong with odd rows; raises UserError for the whole file."""
        for line, row in self.rows(path, self.columns):
            if isinstance(row, UserError):
                yield row
            elif self.foreign in row:
                raise at(path, line, f"has {self.foreign}: its times are seconds, so name it qwen-bailian")
            else:
                yield self._read_row(path, line, row)

    def _read_row(self, path: Path, line: int, row: Mapping[str, Any]) -> RequestLengths | UserError:
        time, prompt, answer, *_ = self.columns
        parent = str(row.get("parent_chat_id", NO_PARENT))
        try:
            return RequestLengths(
                _seconds(path, line, time, row[time], self.per_second),
                _tokens(path, line, prompt, row[prompt]),
                _tokens(path, line, answer, row[answer]),
                chat=str(row.get("chat_id", "")),
                parent="" if parent == NO_PARENT else parent,
                blocks=_blocks(row.get("hash_ids")),
            )
        except UserError as error:
            return error


def _blocks(value: Any) -> tuple[int, ...]:
    """None where they are odd."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, tuple[int, ...])
    return ()


def _seconds(path: Path, line: int, name: str, value: Any, per_second: float) -> float:
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
    "mooncake": Format(json_rows, LENGTH_COLUMNS, per_second=1000.0, foreign="chat_id"),
    "qwen-bailian": Format(json_rows, (*LENGTH_COLUMNS, "chat_id")),
}


def recognize(path: Path) -> Format:
    """By the first line; raises UserError."""
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
    """The part of a trace to play."""

    start: float = 0.0  # seconds of the trace's time
    duration: float = math.inf  # seconds of the trace's time
    speed: float = 1.0  # 2 halves the time
    max_input: int | None = None  # tokens
    max_output: int | None = None  # tokens
    limit: int | None = None  # requests


WHOLE = Cut()


def load_trace(path: Path, kind: str | None = None, cut: Cut = WHOLE) -> list[RequestLengths]:
    """In order of arrival; `kind` is a name in TRACES, or None to recognize it. Failed requests, and odd rows while
    they are fewer, are left out and counted. Raises UserError.
    """
    form = recognize(path) if kind is None else TRACES[kind]
    rows = list(form.read(path))
    odd = [one for one in rows if isinstance(one, UserError)]
    read = [one for one in rows if isinstance(one, RequestLengths)]
    if odd and len(odd) >= len(read):
        raise odd[0]
    if odd:
        tell_left_out(path, len(odd), len(rows), f"not as the format has them; the first: {odd[0]}")
    found = sorted((one for one in read if one.input_length and one.output_length), key=lambda one: one.arrival)
    if not found:
        raise UserError(f"{path}: holds no requests with an answer")
    tell_left_out(path, len(read) - len(found), len(read), "requests that failed, with 0 tokens")
    origin = found[0].arrival + cut.start
    if not (chosen := [one for one in found if 0 <= one.arrival - origin < cut.duration]):
        lasts = f"the trace lasts {found[-1].arrival - found[0].arrival:.0f} s"
        asked = f"{cut.duration:g} s from second {cut.start:g} on (--trace-start, --trace-duration)"
        raise UserError(f"{path}: no request arrives in the {asked}; {lasts}")
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
    if count:
        say(f"{path}: {count} of {of} rows are left out: {what}")


def clip(length: int, bound: int | None) -> int:
    return length if bound is None else min(length, bound)
