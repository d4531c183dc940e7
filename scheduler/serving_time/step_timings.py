"""Timings of prefills and decode iterations, read off the reports of one executor's steps.

A group of prompts is prefilled in chunks, one a step, until each of its rows has its first token; steps between them
that decode are not its own. A step that decodes beside a chunk counts for the group, less what the decode is known to
take. Steps in which rows enter by shape tell nothing; those in which K and V are copied are too few to matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from engine.measure.timing import Timing
from engine.messages import RowId, StepReport
from scheduler.serving_time.bilinear import Bilinear

Phase: TypeAlias = Literal["prefill", "decode"]


class Step(NamedTuple):
    """The time that a prefill or a decode iteration took."""

    phase: Phase
    timing: Timing


@dataclass(slots=True)
class _Group:
    """Prompts that are being prefilled together."""

    rows: int
    unread: set[RowId]
    """Rows without a first token."""
    cells: int = 0
    """Tokens that were read so far, padding among them."""
    seconds: float = 0.0


class StepTimings:
    """Reads the reports of one executor, in their order."""

    def __init__(self) -> None:
        self._step = 0
        self._group: _Group | None = None

    def read(self, report: StepReport, model: Bilinear | None) -> Iterator[Step]:
        """Timings that this report completes; `model` parts a step that did both."""
        iterations, self._step = report.step - self._step, report.step
        if report.begun:
            self._group = _Group(len(report.begun), set(report.begun))
        tally, group, updated = report.tally, self._group, {update.row_id for update in report.updates}
        read = tally.prompt + tally.pad
        first = len(group.unread & updated) if group is not None and read else 0
        decoded = tally.generated + tally.invalid - first
        if iterations < 1 or (decoded and not tally.reads):
            self._group = None
        elif not read:
            if decoded and report.seconds > 0:
                rows, columns = max(1, round(decoded / iterations)), round(tally.reads / decoded)
                yield Step("decode", Timing(rows, columns, report.seconds / iterations))
        elif group is not None:
            yield from self._prefill(group, report, _decode_seconds(model, decoded, tally.reads), updated)

    def _prefill(
        self, group: _Group, report: StepReport, decode_seconds: float | None, updated: set[RowId]
    ) -> Iterator[Step]:
        """Count a chunk to its group; the group's timing once its last prompt has been read."""
        if decode_seconds is None:
            self._group = None
            return
        group.cells += report.tally.prompt + report.tally.pad
        group.seconds += max(0.0, report.seconds - decode_seconds)
        group.unread -= updated
        if not group.unread:
            self._group = None
            if group.seconds > 0:
                yield Step("prefill", Timing(group.rows, max(1, round(group.cells / group.rows)), group.seconds))


def _decode_seconds(model: Bilinear | None, rows: int, reads: int) -> float | None:
    """Seconds of a decode iteration of so many rows that read so many cells together; None while that is unknown."""
    if not rows:
        return 0.0
    return None if model is None else model.iteration(float(rows), reads / rows)
