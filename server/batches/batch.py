"""A batch: requests from a file, to be answered while no other request wants the slots; and its place on the disk."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from models.files import replace_file
from server.batches.lines import LineError

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


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"


class BatchFolder:
    """The records, a file each. May block: it runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, record: BatchRecord) -> None:
        """Keep a record; it is on the disk when this returns."""
        with replace_file(self._folder / f"{record.id}.json") as file:
            file.write(msgspec.json.encode(record))

    def remove(self, name: str) -> None:
        """Forget a record."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)

    def load(self) -> list[BatchRecord]:
        """All records, the oldest first."""
        found = []
        for path in self._folder.glob("batch_*.json"):
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=BatchRecord))
        return sorted(found, key=lambda record: (record.created_at, record.id))
