"""The latest requests of a journal, as a simulation replays them: when they came, how long they were, what became of
them. No text is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from loadgen.simulate.simulation import Served
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from scheduler.journal.file import RequestEntry, read

FEWEST = 20
"""Requests below which a replay says nothing."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests that one strategy served one after another, in order of arrival."""

    model: str
    strategy: str
    trace: tuple[Lengths, ...]
    predictions: tuple[float | None, ...]
    """Predicted tokens of each answer, as recorded; None where nothing was predicted."""
    recorded: tuple[Served, ...]
    max_tokens: int
    """Tokens that the most demanding of them asked for."""
    left_out: int
    """Requests that ended without a token."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return max(one.input_length + one.output_length for one in self.trace)

    @property
    def predicted(self) -> bool:
        """Whether the server predicted lengths."""
        return any(one is not None for one in self.predictions)


def read_replay(journal: Path, model: str | None, most: int) -> Replay:
    """The newest requests of a journal, `most` at most, as far back as one strategy served one model.

    `model` as the journal names it; None for the one served last. Raises UserError.
    """
    newest = list(read(journal, RequestEntry, last=most, model=model))[::-1]
    same = takewhile(lambda one: (one.model, one.strategy) == (newest[0].model, newest[0].strategy), newest)
    asked = sorted(same, key=_arrival)
    entries = [one for one in asked if one.generated and one.started is not None]
    if len(entries) < FEWEST:
        whose = "" if model is None else f" to {model}"
        raise UserError(
            f"{journal}: holds {len(entries)} answered requests{whose} of the latest strategy, and {FEWEST} are "
            "wanted: serve some more first, or name another journal with --journal"
        )
    return _replay(entries, len(asked) - len(entries))


def _replay(entries: Sequence[RequestEntry], left_out: int) -> Replay:
    origin = _arrival(entries[0])
    return Replay(
        model=entries[0].model,
        strategy=entries[0].strategy,
        trace=tuple(Lengths(_arrival(one) - origin, one.input_length, one.generated) for one in entries),
        predictions=tuple(one.predicted for one in entries),
        recorded=tuple(_served(one, _arrival(one) - origin) for one in entries),
        max_tokens=max(one.max_tokens for one in entries),
        left_out=left_out,
    )


def _served(entry: RequestEntry, arrival: float) -> Served:
    end = arrival + entry.latency
    return Served(
        arrival=arrival,
        started=arrival + (entry.started or 0.0),
        first_token=end if entry.first_token is None else arrival + entry.first_token,
        end=end,
        input_length=entry.input_length,
        output_length=entry.generated,
        runs=entry.runs,
        predicted_length=entry.predicted,
    )


def _arrival(entry: RequestEntry) -> float:
    """When a request came, in seconds since 1970."""
    return entry.finished_at - entry.latency
