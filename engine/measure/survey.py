"""Measures a device over a grid of batch sizes and lengths, within a time limit.

It knows neither what is made of the timings nor where they are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from engine.measure.profiler import REPEATS, Profiler
from engine.measure.timing import Timing

SHORTEST = 16
"""Tokens of the shortest rows that are measured."""

PREFILL_SHARE = 0.6
"""Part of the time for a survey that prefill may take."""

COPIES_SHARE = 0.05
"""Part of the time for a survey that copies may take."""

COPIED_ROWS = 8
COPIED_TOKENS = 4096
"""Most that is copied at a time: a batch's worth, which a processor's cache does not hold, yet little of the memory."""

Phase: TypeAlias = Literal["copies", "prefill", "decode"]


class Cell(NamedTuple):
    """A place in the grid: so many rows of so many tokens."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell that was dealt with; `timing` is None when there was no time or no room for it."""

    phase: Phase
    cell: Cell
    timing: Timing | None


def grid(max_rows: int, longest: int, *, points: int) -> tuple[Cell, ...]:
    """Batch sizes up to `max_rows` by lengths up to `longest`, evenly spaced by ratio, the cheapest cell first.

    points   how many of each
    Raises ValueError when there is no grid between these.
    """
    if max_rows < 2 or longest < 2 * SHORTEST:
        raise ValueError(
            f"a profile needs at least 2 rows and {2 * SHORTEST} tokens, not {max_rows} and {longest}: "
            "raise --max-num-seqs or --max-model-len, or choose a model with a longer context"
        )
    rows, lengths = _spaced(1, max_rows, points), _spaced(SHORTEST, longest, points)
    cells = (Cell(count, length) for count in rows for length in lengths)
    return tuple(sorted(cells, key=lambda cell: (cell.rows * cell.length, cell.rows)))


def copied(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Cells whose K and V are copied to measure copies: each length of `cells` once, the shortest first."""
    most = min(COPIED_ROWS, max(cell.rows for cell in cells))
    lengths = sorted({cell.length for cell in cells})
    return tuple(Cell(max(1, min(most, COPIED_TOKENS // length)), length) for length in lengths)


def survey(profiler: Profiler, cells: tuple[Cell, ...], time_limit: float) -> Iterator[Measured]:
    """Measure copies of each length, then a grid cell by cell, prefill first, in about `time_limit` seconds.

    Cells come cheapest first. One that would not end in time, judged by those before it, is passed over.
    """
    begin = profiler.now()
    lengths = copied(cells)

    def copy(cell: Cell) -> Timing:
        share = COPIES_SHARE * time_limit / len(lengths)
        return Timing(*cell, _repeated(lambda: profiler.copies(*cell), share))

    def prefill(cell: Cell) -> Timing:
        share = PREFILL_SHARE * time_limit / len(cells)
        return Timing(*cell, _repeated(lambda: profiler.prefill(*cell), share))

    yield from _phase("copies", copy, profiler, lengths, begin + COPIES_SHARE * time_limit)
    yield from _phase("prefill", prefill, profiler, cells, begin + PREFILL_SHARE * time_limit)
    yield from _phase("decode", lambda cell: profiler.decode(*cell), profiler, cells, begin + time_limit)


def _phase(
    phase: Phase,
    measure: Callable[[Cell], Timing],
    profiler: Profiler,
    cells: tuple[Cell, ...],
    end: float,
) -> Iterator[Measured]:
    seconds_per_token = 0.0  # of the last cell measured
    for cell in cells:
        tokens = cell.rows * cell.length
        late = profiler.now() + seconds_per_token * tokens > end
        if late or not profiler.holds(cell.rows, cell.length + 1):
            yield Measured(phase, cell, None)
            continue
        timing = measure(cell)
        seconds_per_token = timing.seconds / tokens
        yield Measured(phase, cell, timing)


def _repeated(work: Callable[[], float], limit: float) -> float:
    """Median of up to REPEATS runs, as many as `limit` seconds allow.

    The first warms up; it counts only when there is no time for another.
    """
    runs = [work()]
    while len(runs) <= REPEATS and sum(runs) + runs[-1] <= limit:
        runs.append(work())
    return statistics.median(runs[1:] or runs)


def _spaced(low: int, high: int, points: int) -> list[int]:
    """About `points` whole numbers from `low` to `high`, evenly spaced by ratio."""
    return sorted({round(low * (high / low) ** (step / (points - 1))) for step in range(points)})
