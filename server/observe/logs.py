"""Log lines that cost no service when unread or flooded. In systemd's journal they carry a
severity (sd-daemon(3)) and no time.
"""

import logging
import os
import queue
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, SysLogHandler
from typing import TextIO

import orjson
from aiohttp.http_exceptions import HttpProcessingError

from server.request_id import CURRENT_ID

log = logging.getLogger(__name__)

TIMED = "%(asctime)s %(levelname)s %(name)s: %(message)s"
UNTIMED = "%(levelname)s %(name)s: %(message)s"

MOST_LINES = 10_000  # waiting to be written; more are dropped and counted

FLUSH_SECONDS = 0.3  # seconds at the process's end


def configure(level: str, format: str = "human") -> None:
    """To standard error; format `json` for programs."""
    journal = in_journal(sys.stderr, os.environ)
    formatter = JsonLines() if format == "json" else logging.Formatter(UNTIMED if journal else TIMED)
    handler = QueuedLines(sys.stderr.fileno())
    handler.setFormatter(Prioritised(formatter) if journal else formatter)
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.getLogger("aiohttp.server").addFilter(quiet_broken_requests)


def in_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """By systemd.exec(5)'s $JOURNAL_STREAM."""
    with suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


class QueuedLines(QueueHandler):
    """A thread writes the lines, so that what logs never waits."""

    def __init__(self, descriptor: int) -> None:
        self.lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_LINES)
        super().__init__(self.lines)
        self.dropped = 0  # no room
        LineWriter(self, descriptor).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Wait briefly for written lines."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, FLUSH_SECONDS)


class LineWriter(QueueListener):
    """To a file descriptor: standard error's lock would keep the process from its end."""

    def __init__(self, source: QueuedLines, descriptor: int) -> None:
        super().__init__(source.lines)
        self._source, self._descriptor = source, descriptor
        self._told = 0  # dropped lines already reported

    def handle(self, record: logging.LogRecord) -> None:
        line = f"{record.getMessage()}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):  # the reader is gone
            while line:
                line = line[os.write(self._descriptor, line) :]
        untold = self._source.dropped - self._told
        if untold and self._source.lines.empty():
            self._told += untold
            log.warning("%d messages were dropped, as the log was not read", untold)


def count_dropped() -> int:
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedLines))


class JsonLines(logging.Formatter):
    """One object a line, with the request's id and `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%FT%T.%f}"[:-3] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _printable(record.getMessage()),
        }
        if (request_id := CURRENT_ID.get()) is not None:
            entry["request_id"] = request_id
        entry |= fields_of(record)
        if record.exc_info:
            entry["exception"] = _printable(self.formatException(record.exc_info))
        return orjson.dumps(entry, default=str).decode()


class Prioritised(logging.Formatter):
    """Another formatter's lines with severity in front."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{SysLogHandler.priority_names[SysLogHandler.priority_map.get(record.levelname, 'debug')]}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def with_fields(**fields: object) -> dict[str, Mapping[str, object]]:
    """A log call's `extra`, shown in JSON only."""
    return {"fields": fields}


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def quiet_broken_requests(record: logging.LogRecord) -> bool:
    """Drop aiohttp's tracebacks for invalid HTTP and unread files, which any client can cause at any rate."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, UnicodeError, TimeoutError))


def _printable(text: str) -> str:
    """Half characters, as in paths, are no JSON."""
    return text.encode("utf-8", "replace").decode()
