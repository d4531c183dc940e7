"""Answers to the lines of batches: JSON lines on the disk, which become files. May block: it runs in a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from server.batches.asking import ResultLine
from server.batches.batch import BatchRecord
from server.batches.files import FileStore, NoSuchFile
from server.batches.lines import READ_SIZE


@dataclass(frozen=True, slots=True)
class Results:
    """A batch's answers and errors, each kind in a content of its own."""

    record: BatchRecord
    files: FileStore

    def find_answered(self) -> tuple[set[str], set[str]]:
        """The lines that have an answer, and those that have an error, by custom_id."""
        output, error = (
            set(ResultFile(self.files.path(name)).answered())
            for name in (self.record.output_file_id, self.record.error_file_id)
        )
        return output, error

    def append(self, lines: Sequence[ResultLine], fine: bool) -> None:
        """Add answers, or errors; they are on the disk when this returns."""
        name = self.record.output_file_id if fine else self.record.error_file_id
        written = msgspec.json.Encoder().encode_lines(lines)
        ResultFile(self.files.path(name)).append(written)
        self.files.note_answers(name, self.record.holder, len(written))

    def publish(self) -> tuple[int, int]:
        """Make files of the answers and the errors; returns how many of each there are."""
        completed, failed = self.find_answered()
        for name, kind in ((self.record.output_file_id, "output"), (self.record.error_file_id, "error")):
            if self.files.path(name).exists():
                try:
                    self.files.find(name, self.record.holder)
                except NoSuchFile:
                    self.files.add(name, f"{self.record.id}_{kind}.jsonl", "batch_output", self.record.holder)
        return len(completed), len(failed)


class AnswerLine(msgspec.Struct, frozen=True):
    """The id of an answered line."""

    custom_id: str


class ResultFile:
    """Answers, a line each, of which only whole ones count."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def answered(self) -> Iterator[str]:
        """The lines that have one; what a crash has left of a last line is cut off."""
        if not self._path.exists():
            return
        with open(self._path, "rb+", buffering=READ_SIZE) as file:
            whole = 0
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                yield msgspec.json.decode(raw, type=AnswerLine).custom_id
            file.truncate(whole)

    def append(self, lines: bytes) -> None:
        """Add whole lines; they are on the disk when this returns. Raises OSError, and then adds none."""
        before = self._path.stat().st_size if self._path.exists() else 0
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            if self._path.exists():
                os.truncate(self._path, before)  # or half a line would spoil the next
            raise
