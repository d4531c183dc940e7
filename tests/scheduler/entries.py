"""Journal entries in miniature."""

from pathlib import Path

from scheduler.journal.file import RequestEntry
from scheduler.journal.writer import Journal


def request_entry(
    finished_at: float = 100.0,
    *,
    generated: int = 20,
    predicted: float | None = 30.5,
    outcome: str = "stop",
    features: tuple[float, ...] = (0.5, 2.0),
    instruction: str | None = None,
    user_input: str | None = None,
) -> RequestEntry:
    return RequestEntry(
        finished_at=finished_at,
        model="tiny",
        strategy="magnus",
        outcome=outcome,
        input_length=12,
        user_input_length=8,
        max_tokens=64,
        generated=generated,
        predicted=predicted,
        source=None if predicted is None else "forest",
        assigned=0.25,
        started=0.5,
        first_token=0.75,
        latency=1.5,
        features=features,
        instruction=instruction,
        user_input=user_input,
    )


def written(path: Path, *entries: RequestEntry) -> Journal:
    """A journal that was started, told the entries, and closed."""
    journal = Journal(path)
    journal.start()
    for entry in entries:
        journal.put(entry)
    journal.close()
    return journal
