"""Journal entries in miniature."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler.journal.file import RequestEntry
from scheduler.journal.writer import Journal

ENTRY = RequestEntry(
    100.0, "tiny", "magnus", "stop", 12, 8, 64, 20, 30.5, "forest", 0.25, 0.5, 0.75, 1.5, features=(0.5, 2.0)
)


def request_entry(finished_at: float = 100.0, **changes: Any) -> RequestEntry:
    entry = replace(ENTRY, finished_at=finished_at, **changes)
    return entry if entry.predicted is not None else replace(entry, source=None)


def written(path: Path, *entries: RequestEntry) -> Journal:
    """A journal that was started, told the entries, and closed."""
    journal = Journal(path)
    journal.start()
    for entry in entries:
        journal.put(entry)
    journal.close()
    return journal
