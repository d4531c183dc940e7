"""A batch on the disk, in JSON. Blocks."""

import os
import re
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from server.access import Share
from server.json_depth import TOO_DEEP

WINDOW = 24 * 3600  # seconds; OpenAI's only window

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

UNDER_WAY = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class LineError(msgspec.Struct, frozen=True):
    """An error in a line of the input, or in the input as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    """What outlives the server, beside results. Seconds since 1970; changed by the runner only."""

    id: str
    holder: str | None
    endpoint: str
    input_file_id: str
    output_file_id: str  # becomes a file at the end, if there are answers
    error_file_id: str
    created_at: int
    metadata: dict[str, str] = {}
    status: BatchStatus = "validating"
    errors: list[LineError] = []
    times: dict[str, int] = {}  # status -> when
    total: int = 0  # lines of the input, and answered or failed ones; on disk for ended batches
    completed: int = 0
    failed: int = 0

    @property
    def result_ids(self) -> tuple[str, str]:
        return self.output_file_id, self.error_file_id

    @property
    def expires_at(self) -> int:
        return self.created_at + WINDOW

    @property
    def under_way(self) -> bool:
        return self.status in UNDER_WAY

    def enter(self, status: BatchStatus) -> None:
        self.status = status
        self.times = {**self.times, status: int(time.time())}


MOST_LINES = 50_000
READ_SIZE = 2**20  # at once: small reads pass the interpreter to and fro, which paused the event loop for 0.1 s

MOST_ERRORS = 100  # reported


class InputLine(msgspec.Struct, frozen=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Place:
    """All that is kept of a line until it is answered."""

    custom_id: str
    offset: int
    size: int

    def read(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            file.seek(self.offset)
            return bytes(_decode(file.read(self.size)).body)


def find_lines(path: Path, endpoint: str, longest: int) -> tuple[list[Place], list[LineError]]:
    """Places of lines up to `longest` bytes, and the first errors. Raises OSError."""
    places: dict[str, Place] = {}
    errors: list[LineError] = []
    offset, number = 0, 0
    with open(path, "rb", buffering=READ_SIZE) as file:
        for number, raw in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
            if raw.strip():
                if len(raw) > longest:
                    errors.append(LineError("line_too_large", f"a line has {longest} bytes at most", number))
                    break  # the next line's begin is unknown
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
    """`earlier`: ids of the lines before."""
    try:
        line = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", TOO_DEEP if isinstance(error, RecursionError) else str(error), number)
    if line.method != "POST":
        return LineError("invalid_method", "method: must be POST", number, "method")
    if line.url != endpoint:
        return LineError("mismatched_url", f"url: must be the batch's endpoint, {endpoint}", number, "url")
    if line.custom_id in earlier:
        return LineError("duplicate_custom_id", "custom_id: another line has this one", number, "custom_id")
    return line


_HEAD = re.compile(rb'\s*\{(?:\s*"(?:custom_id|method|url)"\s*:\s*"(?:[^"\\]|\\.)*+"\s*,)*+\s*"body"\s*:')


def _decode(raw: bytes) -> InputLine:
    """With a malformed body, if it comes last: an error of that line only."""
    try:
        return msgspec.json.decode(raw, type=InputLine)
    except (msgspec.DecodeError, RecursionError) as error:
        head, rest = _HEAD.match(raw), raw.rstrip()
        if head is None or not rest.endswith(b"}") or isinstance(error, msgspec.ValidationError):
            raise
        line = msgspec.json.decode(head[0] + b"0}", type=InputLine)
        return msgspec.structs.replace(line, body=msgspec.Raw(rest[head.end() : -1].strip()))


class LineReply(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class Asker(Protocol):
    """Answers the lines of batches."""

    def enter(self, holder: str | None) -> Share | None: ...
    def leave(self, share: Share) -> None: ...
    async def ask(self, record: BatchRecord, body: bytes, share: Share, request_id: str) -> LineReply | None: ...


class ResultLine(msgspec.Struct, frozen=True):
    """Of an output or error file."""

    id: str
    custom_id: str
    response: LineReply | None
    error: LineError | None


def read_answered(path: Path) -> set[str]:
    """Answered lines in a result file; a crash's partial last line is cut off."""
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
    """All or none, on the disk on return. Raises OSError."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if path.exists():
            os.truncate(path, before)  # half a line would spoil the next
        raise
