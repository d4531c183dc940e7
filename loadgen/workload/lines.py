"""Files as numbered lines, JSON objects and CSV rows. Knows no workload; every error names the file and the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.errors import UserError

TRUNCATED = "the file may be truncated"
GZIP = b"\x1f\x8b"
"""Bytes that a compressed file begins with."""


def at(path: Path, line: int, reason: str) -> UserError:
    """The error for one line of a file, counted from 1."""
    return UserError(f"{path}, line {line}: {reason}")


def read_text(path: Path) -> str:
    """A whole UTF-8 file; raises UserError."""
    return "".join(text for _, text in text_lines(path))


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


def json_objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file with their lines; empty lines are passed over."""
    for number, text in text_lines(path):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise at(path, number, f"is not valid JSON ({error}); {TRUNCATED}") from None
        if not isinstance(value, dict):
            raise at(path, number, f"must be a JSON object, not {type(value).__name__}")
        yield number, value


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file that have at least `columns`, with their lines."""
    for number, row in json_objects(path):
        if missing := [key for key in columns if key not in row]:
            raise at(path, number, f"lacks {', '.join(missing)}")
        yield number, row


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows below a header that has at least `columns`, by column, with their lines."""
    reader = csv.reader((text for _, text in text_lines(path)), strict=True)
    rows = _parsed(path, reader)
    header = next((row for _, row in rows), [])
    missing = [column for column in columns if column not in header]
    if missing:
        raise at(path, 1, f"the header must name {', '.join(columns)}; it lacks {', '.join(missing)}")
    for number, row in rows:
        if len(row) != len(header):
            raise at(path, number, f"has {len(row)} fields, the header has {len(header)}; {TRUNCATED}")
        yield number, dict(zip(header, row, strict=True))


def _parsed(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of their last line; empty lines are passed over."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise at(path, reader.line_num, f"is not valid CSV: {error}") from None
        if row:
            yield reader.line_num, [field.strip() for field in row]
