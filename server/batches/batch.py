"""A batch: requests from a file, to be answered while no other request wants the slots; its place on the disk, and its
lines, of input and of answers, which are JSON. Disk access may block: it runs in a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

WINDOW = 24 * 3600
"""Seconds that a batch has: OpenAI knows this one window only."""

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

UNDER_WAY = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class BatchRecord(msgspec.Struct, kw_only=True):
    """All that outlives the server, beside the results. Times in seconds since 1970; only the runner changes it."""

    id: str
    holder: str | None
    endpoint: str
    input_file_id: str
    output_file_id: str
    """Where answers go; a file once the batch has ended, if there are any."""
    error_file_id: str
    created_at: int
    metadata: dict[str, str] = {}
    status: BatchStatus = "validating"
    errors: list[LineError] = []
    times: dict[str, int] = {}
    """Status -> when it came to it."""
    total: int = 0
    """Lines of the input, and those that have an answer or an error; on the disk those of a batch that has ended."""
    completed: int = 0
    failed: int = 0

    @property
    def result_ids(self) -> tuple[str, str]:
        """Where answers go, and where errors."""
        return self.output_file_id, self.error_file_id

    @property
    def expires_at(self) -> int:
        return self.created_at + WINDOW

    @property
    def under_way(self) -> bool:
        return self.status in UNDER_WAY

    def enter(self, status: BatchStatus) -> None:
        """Give the batch another status, and note the time."""
        self.status = status
        self.times = {**self.times, status: int(time.time())}


MOST_LINES = 50_000
READ_SIZE = 2**20
"""Bytes that are read at a time: a thread that reads little at a time gives the interpreter away and takes it back so
often that the event loop's wait for it begins anew each time, which made pauses of 0.1 s."""

MOST_ERRORS = 100
"""Errors of an input that are told."""


class LineError(msgspec.Struct, frozen=True):
    """An error in a line of the input, or in the input as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class InputLine(msgspec.Struct, frozen=True):
    """A line of a batch's input: one request."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line is in the input: what is kept of it until it is answered."""

    custom_id: str
    offset: int
    size: int

    def read(self, path: Path) -> bytes:
        """The body of its request."""
        with open(path, "rb") as file:
            file.seek(self.offset)
            return bytes(msgspec.json.decode(file.read(self.size), type=InputLine).body)


def find_lines(path: Path, endpoint: str, longest: int) -> tuple[list[Place], list[LineError]]:
    """The places of all lines, of `longest` bytes at most, and the first faults of the input. Raises OSError."""
    places: dict[str, Place] = {}
    errors: list[LineError] = []
    offset, number = 0, 0
    with open(path, "rb", buffering=READ_SIZE) as file:
        for number, raw in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
            if raw.strip():
                if len(raw) > longest:
                    errors.append(LineError("line_too_large", f"a line has {longest} bytes at most", number))
                    break  # where the next one begins is unknown
                line = _read_line(raw, number, endpoint, places)
                if isinstance(line, LineError):
                    errors.append(line)
                else:
                    places[line.custom_id] = Place(line.custom_id, offset, len(raw))
            offset += len(raw)
            if len(errors) >= MOST_ERRORS or len(places) > MOST_LINES or number > 2 * MOST_LINES:
                break
    if len(places) > MOST_LINES or number > 2 * MOST_LINES:
        errors.append(LineError("too_many_requests", f"a batch has {MOST_LINES} lines at most, and as many blank ones"))
    if not places and not errors:
        errors.append(LineError("empty_file", "the file has no lines"))
    return list(places.values()), errors


def _read_line(raw: bytes, number: int, endpoint: str, earlier: Container[str]) -> InputLine | LineError:
    """A line, or what is wrong with it; `earlier` are the ids of those before."""
    try:
        line = msgspec.json.decode(raw, type=InputLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", str(error), number)
    if line.method != "POST":
        return LineError("invalid_method", "method: must be POST", number, "method")
    if line.url != endpoint:
        return LineError("mismatched_url", f"url: must be the batch's endpoint, {endpoint}", number, "url")
    if line.custom_id in earlier:
        return LineError("duplicate_custom_id", "custom_id: another line has this one", number, "custom_id")
    return line


class LineReply(msgspec.Struct, frozen=True):
    """The answer to a request as HTTP would have it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or an error file."""

    id: str
    custom_id: str
    response: LineReply | None
    error: LineError | None


def read_answered(path: Path) -> set[str]:
    """The lines that have an answer in a file of results; what a crash has left of a last line is cut off."""
    found: set[str] = set()
    if path.exists():
        with open(path, "rb+", buffering=READ_SIZE) as file:
            whole = 0
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                found.add(msgspec.json.decode(raw, type=ResultLine).custom_id)
            file.truncate(whole)
    return found


def append(path: Path, lines: bytes) -> None:
    """Add whole lines to a file of results; they are on the disk when this returns. Raises OSError, and then adds
    none."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if path.exists():
            os.truncate(path, before)  # or half a line would spoil the next
        raise
