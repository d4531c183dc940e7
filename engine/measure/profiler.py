"""Times prefill (with first tokens and insertion), decode (with sampling) and KV copies, by the engine's own parts."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import pairwise
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

REPEATS = 5  # after a warm-up; odd for the median


QUICK_REPEATS = 3


@dataclass(eq=False)
class Profiler:
    """Rows are greedy and endless."""

    model: LoadedModel
    text: Text
    _: KW_ONLY
    capacity_tokens: int  # of the arena; a prefill takes twice its own beside it
    max_rows: int
    chunk_tokens: int  # of a prompt
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        arena = KvArena(self.model.kv, self.capacity_tokens, max_rows=self.max_rows)
        graphs = graphs_for(self.model, arena)
        if graphs is not None:
            graphs.prepare()
        self._batch = RunningBatch(self.model, arena, headroom=0, graphs=graphs)

    def now(self) -> float:
        return read_clock(self.model.device, self.clock)

    def holds(self, rows: int, columns: int) -> bool:
        return rows <= self.max_rows and rows * columns <= self.capacity_tokens

    @torch.inference_mode()
    def _time(self, work: Callable[[], object]) -> float:
        begin = self.now()
        work()
        seconds = self.now() - begin
        while self._batch.rows:
            self._batch.remove(self._batch.rows[-1])
        return seconds

    def prefill(self, rows: int, length: int) -> float:
        return self.slice(rows, length, 0)

    def decode(self, rows: int, length: int) -> Timing:
        """Median iteration; the last reads `length` columns."""
        return Timing(rows, length - REPEATS // 2, statistics.median(self._steps(rows, length - 1, REPEATS)))

    def quickest_step(self, rows: int, length: int) -> float:
        return min(self._steps(rows, length - 2, QUICK_REPEATS))

    def copies(self, rows: int, length: int) -> float:
        self._fill(rows, length)
        return self._time(self._move_all)

    def _move_all(self) -> None:
        kept = [(row, self._batch.extract(row)) for row in reversed(self._batch.rows.copy())]  # as handed back
        for row, kv in kept:
            self._batch.insert(row, kv)

    def slice(self, rows: int, length: int, iterations: int) -> float:
        return self._time(partial(self._serve, self._new_rows(rows, length), iterations))

    def _serve(self, group: list[Row], iterations: int) -> None:
        ended = Prefill(self.model, group).finish(self.chunk_tokens)
        self._choose([done.row for done in ended], torch.stack([done.logits for done in ended]))
        for done in ended:
            self._batch.insert(done.row, done.kv)
        for _ in range(iterations):
            self._iterate()

    @torch.inference_mode()
    def _fill(self, rows: int, length: int) -> None:
        kv = self.model.kv
        layout = (kv.layers, kv.kv_heads, length, kv.head_dim)
        blank = RowKv(*(torch.zeros(layout, dtype=kv.dtype, device=kv.device) for _ in ("keys", "values")))
        for row in self._new_rows(rows, length):
            row.accept(Choice(row.prompt[0]))
            self._batch.insert(row, blank)

    def _steps(self, rows: int, length: int, repeats: int) -> list[float]:
        """After a warm-up; rows begin with `length` - `repeats` tokens."""
        self._fill(rows, length - repeats)
        moments = [self.now()]
        self._time(lambda: moments.extend(self._iterate() for _ in range(1 + repeats)))
        return [after - before for before, after in pairwise(moments[1:])]

    def _iterate(self) -> float:
        self._choose(self._batch.rows, self._batch.step())
        return self.now()

    def _choose(self, rows: list[Row], logits: torch.Tensor) -> None:
        for row, choice in zip(rows, sampling.sample(rows, logits), strict=True):
            if not isinstance(choice, Choice):
                raise UserError("the network computed a value that is not a finite number: try another --dtype")
            row.accept(choice)

    def _new_rows(self, rows: int, length: int) -> list[Row]:
        prompt = tuple(random.Random(length).choices(range(self.model.vocab_size), k=length))
        endless = SamplingParams(max_tokens=self.model.context_length, temperature=0.0, ignore_eos=True)
        return [Row(RowSpec(row_id, prompt, endless), self.text, frozenset()) for row_id in range(rows)]


def read_clock(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


SHORTEST = 16  # tokens

PREFILL_SHARE = 0.6  # of a survey's time

COPIES_SHARE = 0.05  # of a survey's time

COPIED_ROWS = 8
COPIED_TOKENS = 4096  # more than a processor's cache


class GridCell(NamedTuple):
    rows: int
    length: int


def grid(max_rows: int, longest: int, *, points: int) -> tuple[GridCell, ...]:
    """`points` sizes by `points` lengths, geometric, cheapest first. Raises ValueError."""
    if max_rows < 2 or longest < 2 * SHORTEST:
        raise ValueError(
            f"a profile needs at least 2 rows and {2 * SHORTEST} tokens, not {max_rows} and {longest}: "
            "raise --max-num-seqs or --max-model-len, or choose a model with a longer context"
        )
    rows, lengths = _spaced(1, max_rows, points), _spaced(SHORTEST, longest, points)
    cells = (GridCell(count, length) for count in rows for length in lengths)
    return tuple(sorted(cells, key=lambda cell: (cell.rows * cell.length, cell.rows)))


def copied(cells: tuple[GridCell, ...]) -> tuple[GridCell, ...]:
    most = min(COPIED_ROWS, max(cell.rows for cell in cells))
    lengths = sorted({cell.length for cell in cells})
    return tuple(GridCell(max(1, min(most, COPIED_TOKENS // length)), length) for length in lengths)


def survey(
    profiler: Profiler, cells: tuple[GridCell, ...], time_limit: float, watch: Callable[[str, int, int], None]
) -> Timings:
    """Cheapest cells first, within `time_limit` seconds; `watch` gets phase, cells done and in all."""
    begin, found = profiler.now(), dict[str, tuple[Timing, ...]]()
    phases = (("copies", copied(cells), COPIES_SHARE), ("prefill", cells, PREFILL_SHARE), ("decode", cells, 1.0))
    for phase, places, share in phases:
        timings, end, seconds_per_token = list[Timing](), begin + share * time_limit, 0.0  # of the last cell
        for done, cell in enumerate(places, start=1):
            tokens = cell.rows * cell.length
            late = profiler.now() + seconds_per_token * tokens > end
            if not late and profiler.holds(cell.rows, cell.length + 1):
                timings.append(_measure(profiler, phase, cell, share * time_limit / len(places)))
                seconds_per_token = timings[-1].seconds / tokens
            watch(phase, done, len(places))
        found[phase] = tuple(timings)
    return Timings(found["prefill"], found["decode"], copies=found["copies"])


def _measure(profiler: Profiler, phase: str, cell: GridCell, limit: float) -> Timing:
    if phase == "decode":
        return profiler.decode(*cell)
    work = profiler.copies if phase == "copies" else profiler.prefill
    runs = [work(*cell)]
    while len(runs) <= REPEATS and sum(runs) + runs[-1] <= limit:
        runs.append(work(*cell))
    return Timing(*cell, statistics.median(runs[1:] or runs))


def _spaced(low: int, high: int, points: int) -> list[int]:
    return sorted({round(low * (high / low) ** (step / (points - 1))) for step in range(points)})
