"""Where log lines go and how they look; and that broken requests cannot flood them.

A line is for people, or one JSON object for programs. In systemd's journal it has its severity in front, as
sd-daemon(3) has it, and no time, which the journal knows.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import orjson
from aiohttp.http_exceptions import HttpProcessingError

from server.http.request_id import current_id

log = logging.getLogger(__name__)

TIMED = "%(asctime)s %(levelname)s %(name)s: %(message)s"
UNTIMED = "%(levelname)s %(name)s: %(message)s"

MOST_LINES = 10_000
"""Lines that may wait to be written; more are dropped, and counted."""

FLUSH_SECONDS = 0.3
"""Seconds that the process waits at its end for lines to be written."""


def configure(level: str, format: str = "human") -> None:
    """Log to standard error from `level` on, lines for people or, in the format `json`, for programs."""
    journal = in_journal(sys.stderr, os.environ)
    formatter = JsonLines() if format == "json" else logging.Formatter(UNTIMED if journal else TIMED)
    handler = QueuedLines(sys.stderr.fileno())
    handler.setFormatter(Prioritised(formatter) if journal else formatter)
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.getLogger("aiohttp.server").addFilter(quiet_broken_requests)


def in_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether what is written goes to systemd's journal (systemd.exec(5), $JOURNAL_STREAM)."""
    told = environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return told == f"{status.st_dev}:{status.st_ino}"


class QueuedLines(logging.Handler):
    """Writes lines to a file descriptor from a thread of its own: where they are not read, what logs must not wait."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes] = queue.Queue(MOST_LINES)
        self.dropped = 0
        """Lines for which there was no room."""
        self._told = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line, or count it where the queue is full."""
        try:
            self._lines.put_nowait(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines are written, for a moment."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, FLUSH_SECONDS)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            with suppress(OSError):  # the reader is gone
                self._write(line)
            self._lines.task_done()
            untold = self.dropped - self._told
            if untold and self._lines.empty():
                self._told += untold
                log.warning("%d messages were dropped, as the log was not read", untold)

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]


def count_dropped() -> int:
    """Lines that this process's log had no room for."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedLines))


class JsonLines(logging.Formatter):
    """One JSON object a line: what happened, where, while which request was served, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%FT%T.%f}"[:-3] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _printable(record.getMessage()),
        }
        request_id = current_id()
        if request_id is not None:
            entry["request_id"] = request_id
        entry |= fields_of(record)
        if record.exc_info:
            entry["exception"] = _printable(self.formatException(record.exc_info))
        return orjson.dumps(entry, default=str).decode()


class Prioritised(logging.Formatter):
    """Another formatter's lines, each with its severity (sd-daemon(3)) in front."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_severity(record.levelno)}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def with_fields(**fields: object) -> dict[str, Mapping[str, object]]:
    """The `extra` of a log call: fields of its own in the JSON form, not shown in the human one."""
    return {"fields": fields}


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def quiet_broken_requests(record: logging.LogRecord) -> bool:
    """Drop what aiohttp logs, a traceback each, for bytes that are not HTTP or no text, and for files that are left
    unread: any client can do so at any rate."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, UnicodeError, TimeoutError))


def _severity(level: int) -> int:
    """Number of a level in syslog."""
    known = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((number for least, number in known if level >= least), 7)


def _printable(text: str) -> str:
    """Half characters, as paths may have them, are no JSON."""
    return text.encode("utf-8", "replace").decode()
