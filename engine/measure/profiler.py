"""Measures what a device takes to prefill a batch, to decode it and to move its K and V, with the engine's parts:
single batches, and a grid of batch sizes and lengths within a time limit.

What is timed is what serving does: prefill is chunks, first tokens and the copies into the arena; an iteration is a
step, sampling and the rows' bookkeeping; copies go out of the arena to host memory and in again, as those of rows that
are handed back and return. It knows neither what is made of the timings nor where they are kept.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.forward.batch import RunningBatch
from engine.forward.graphs import graphs_for
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.measure.timing import Timing, Timings
from engine.messages import RowSpec
from engine.row import Choice, Row
from engine.sampling import sampler as sampling
from engine.sampling.params import SamplingParams
from models.errors import UserError
from models.network.loader import LoadedModel
from models.text import Text

REPEATS = 5
"""Times that a cell is measured when there is time enough, after one that warms up; odd, so that one is the middle."""


QUICK_REPEATS = 3
"""Iterations of a quick measurement, after one that warms up."""


class Profiler:
    """Runs batches on a device and tells what they took. Rows are greedy and end by nothing.

    capacity_tokens   tokens of K and V that the arena holds; a prefill takes twice as many again as it has tokens
    chunk_tokens      prompt tokens that are prefilled at a time
    clock             seconds; read only when the device has done all that it was told
    """

    def __init__(
        self,
        model: LoadedModel,
        text: Text,
        *,
        capacity_tokens: int,
        max_rows: int,
        chunk_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._text = text
        self._chunk_tokens = chunk_tokens
        self._clock = clock
        arena = KvArena(model.kv, capacity_tokens, max_rows=max_rows)
        graphs = graphs_for(model, arena)
        if graphs is not None:
            graphs.prepare()
        self._batch = RunningBatch(model, arena, headroom=0, graphs=graphs)

    def now(self) -> float:
        """Seconds, once the device has done all that it was told."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return self._clock()

    def holds(self, rows: int, columns: int) -> bool:
        """Whether a batch that grows to so many columns fits."""
        arena = self._batch.arena
        return rows <= arena.max_rows and rows * columns <= arena.capacity_tokens

    @torch.inference_mode()
    def prefill(self, rows: int, length: int) -> float:
        """Seconds of one prefill of `rows` prompts of `length` tokens."""
        seconds = self._prefill(rows, length)
        self._clear()
        return seconds

    @torch.inference_mode()
    def decode(self, rows: int, length: int) -> Timing:
        """The median of some iterations, after one that warms up; the last of them reads `length` columns."""
        return Timing(rows, length - REPEATS // 2, statistics.median(self._steps(rows, length - 1, REPEATS)))

    @torch.inference_mode()
    def quickest_step(self, rows: int, length: int) -> float:
        """Seconds of the quickest of a few iterations, after one that warms up: what else the machine does troubles
        the quickest least."""
        return min(self._steps(rows, length - 2, QUICK_REPEATS))

    @torch.inference_mode()
    def copies(self, rows: int, length: int) -> float:
        """Seconds in which K and V of `rows` rows of `length` tokens go to host memory and come back."""
        self._fill(rows, length)
        begin = self.now()
        leaving = list(reversed(self._batch.rows))  # as they are handed back, so that none has to be moved
        kept = [(row, self._batch.extract(row)) for row in leaving]
        for row, kv in kept:
            self._batch.insert(row, kv)
        end = self.now()
        self._clear()
        return end - begin

    @torch.inference_mode()
    def slice(self, rows: int, length: int, iterations: int) -> float:
        """Seconds of a prefill and `iterations` decode iterations, really run one after the other."""
        begin = self.now()
        self._prefill(rows, length)
        for _ in range(iterations):
            self._iterate()
        end = self.now()
        self._clear()
        return end - begin

    def _prefill(self, rows: int, length: int) -> float:
        group = self._new_rows(rows, length)
        begin = self.now()
        ended = Prefill(self._model, group).finish(self._chunk_tokens)
        self._choose([done.row for done in ended], torch.stack([done.logits for done in ended]))
        for done in ended:
            self._batch.insert(done.row, done.kv)
        return self.now() - begin

    def _fill(self, rows: int, length: int) -> None:
        """Let rows run that were never read: only the number of their K and V matters to the time."""
        kv = self._model.kv
        layout = (kv.layers, kv.kv_heads, length, kv.head_dim)
        blank = RowKv(*(torch.zeros(layout, dtype=kv.dtype, device=kv.device) for _ in ("keys", "values")))
        for row in self._new_rows(rows, length):
            row.accept(Choice(row.prompt[0]))
            self._batch.insert(row, blank)

    def _steps(self, rows: int, length: int, repeats: int) -> list[float]:
        """Seconds of iterations after one that warms up, before which rows have `length` tokens less `repeats`."""
        self._fill(rows, length - repeats)
        seconds = [self._iterate() for _ in range(1 + repeats)]
        self._clear()
        return seconds[1:]

    def _iterate(self) -> float:
        begin = self.now()
        self._choose(self._batch.rows, self._batch.step())
        return self.now() - begin

    def _choose(self, rows: list[Row], logits: torch.Tensor) -> None:
        for row, choice in zip(rows, sampling.sample(rows, logits), strict=True):
            if not isinstance(choice, Choice):
                raise UserError("the network computed a value that is not a finite number: try another --dtype")
            row.accept(choice)

    def _clear(self) -> None:
        while self._batch.rows:
            self._batch.remove(self._batch.rows[-1])

    def _new_rows(self, rows: int, length: int) -> list[Row]:
        tokens = min(self._model.vocab_size, self._text.vocab_size)
        prompt = tuple(random.Random(length).choices(range(tokens), k=length))
        endless = SamplingParams(max_tokens=self._model.context_length, temperature=0.0, ignore_eos=True)
        return [Row(RowSpec(row_id, prompt, endless), self._text, frozenset()) for row_id in range(rows)]


SHORTEST = 16
"""Tokens of the shortest rows that are measured."""

PREFILL_SHARE = 0.6
"""Part of the time for a survey that prefill may take."""

COPIES_SHARE = 0.05
"""Part of the time for a survey that copies may take."""

COPIED_ROWS = 8
COPIED_TOKENS = 4096
"""Most that is copied at a time: a batch's worth, which a processor's cache does not hold, yet little of the memory."""


class Cell(NamedTuple):
    """A place in the grid: so many rows of so many tokens."""

    rows: int
    length: int


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


def survey(
    profiler: Profiler, cells: tuple[Cell, ...], time_limit: float, watch: Callable[[str, int, int], None]
) -> Timings:
    """Measure copies of each length, then a grid cell by cell, prefill first, in about `time_limit` seconds.

    Cells come cheapest first. One that would not end in time, judged by those before it, or for which there is no room,
    is passed over.

    watch   called after each cell with the phase, the cells dealt with, and those in all
    """
    begin, found = profiler.now(), dict[str, tuple[Timing, ...]]()
    phases = (("copies", copied(cells), COPIES_SHARE), ("prefill", cells, PREFILL_SHARE), ("decode", cells, 1.0))
    for phase, places, share in phases:
        timings, end, seconds_per_token = list[Timing](), begin + share * time_limit, 0.0  # of the last cell measured
        for done, cell in enumerate(places, start=1):
            tokens = cell.rows * cell.length
            late = profiler.now() + seconds_per_token * tokens > end
            if not late and profiler.holds(cell.rows, cell.length + 1):
                timings.append(_measure(profiler, phase, cell, share * time_limit / len(places)))
                seconds_per_token = timings[-1].seconds / tokens
            watch(phase, done, len(places))
        found[phase] = tuple(timings)
    return Timings(found["prefill"], found["decode"], copies=found["copies"])


def _measure(profiler: Profiler, phase: str, cell: Cell, limit: float) -> Timing:
    """The timing of a cell, in about `limit` seconds; decode takes its iterations whatever that is."""
    if phase == "decode":
        return profiler.decode(*cell)
    work = profiler.copies if phase == "copies" else profiler.prefill
    return Timing(*cell, _repeated(lambda: work(*cell), limit))


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
