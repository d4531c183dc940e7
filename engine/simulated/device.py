"""Computes time only; uninterrupted iterations are one unit of work."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.device import Action, StepOutcome
from engine.kv.prefix_cache import PrefixCache
from engine.messages import RowSpec, RowUpdate, StepStats
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.machine import Cost, Work

GLANCE = 32  # iterations between reports of lengths


@dataclass(eq=False)
class SimulatedDevice:
    batch: SimulatedBatch
    cost: Cost
    max_prefill_tokens: int
    prefixes: PrefixCache[SimulatedKv]
    prefilling: list[SimulatedRow] = field(default_factory=list)  # longest first
    _kept: int = 0  # cached columns
    _read: int = 0  # columns
    _copying: float = 0.0  # seconds of copies due
    _under_way: int = 0  # iterations
    _glance: int = 0

    @property
    def skips_padding(self) -> bool:
        return False

    def new_row(self, spec: RowSpec) -> SimulatedRow:
        return SimulatedRow(spec)

    def kept_prefix(self, row: SimulatedRow) -> int:
        return self.prefixes.length(row.prompt, row.cache_scope)

    def kv_bytes(self, row: SimulatedRow) -> int:
        """One a token: unbounded."""
        return self._settled(row).cached_tokens

    def insert(self, row: SimulatedRow, *, lasting: bool) -> None:
        if row.kv is not None and row.kv.in_host_memory:
            self._copying += self.cost.copy(row.cached_tokens)
        row.kv = None
        self.batch.insert(row, self._under_way)

    def drop(self, row: SimulatedRow) -> None:
        self.prefilling = [other for other in self.prefilling if other is not row]

    def save(self, row: SimulatedRow) -> bool:
        if row.kv is None:
            self.batch.remove(row)
        row.kv = SimulatedKv(self.kv_bytes(row), in_host_memory=True)
        return True

    def fetch(self, row: SimulatedRow) -> None:
        """Charged on joining."""

    def unreported(self, rows: Sequence[SimulatedRow]) -> Sequence[RowUpdate]:
        return [row.report() for row in rows if self._settled(row).step > row.reported]

    def _settled(self, row: SimulatedRow) -> SimulatedRow:
        if row in self.batch.rows:
            self.batch.settle(row)
        return row

    # Computing

    def work(self, action: Action, entering: Sequence[SimulatedRow], most: float) -> Work:
        """`most` iterations, until a decision."""
        if action is Action.PREFILL:
            rows = len(self.prefilling)
            before = self.cost.prefill(rows, self._read) if self._read else 0.0
            copying = self.cost.copy(rows * self._kept) if self._kept and self._read == self._kept else 0.0
            seconds = copying + self.cost.prefill(rows, self._chunk_end()) - before
            return Work(action, 1, lambda _: seconds)
        copying, self._copying = self._copying, 0.0
        rows = len(self.batch)
        if action is Action.ENTER:
            seconds = copying + self.cost.prefill(rows + len(entering), max(row.length for row in entering))
            return Work(action, 1, lambda _: seconds)
        bounds = [most, self.batch.room]
        if self.batch.until_next_end is not None:
            bounds.append(self.batch.until_next_end)
        if not self._closed:
            bounds.append(max(1, self._glance + GLANCE - self.batch.iterations))
        iterations, columns = int(min(bounds)), self.batch.cells / rows
        return Work(action, iterations, lambda count: copying + self.cost.decode(rows, columns, count))

    def launch_chunk(self, rows: Sequence[SimulatedRow]) -> StepStats:
        if not self.prefilling:
            self.prefilling = sorted(rows, key=lambda row: -row.length)
            prompts = [(row.prompt, row.cache_scope) for row in self.prefilling]
            found = self.prefixes.find(prompts, max(row.group.terms.kept_from for row in rows))
            self._kept = self._read = self.prefixes.chunk * len(found[0])
            for row in rows:
                row.cached_prompt = self._kept
        return StepStats()

    def _chunk_end(self) -> int:
        chunk = self.prefixes.chunk
        columns = max(chunk, self.max_prefill_tokens // len(self.prefilling) // chunk * chunk)
        return min(self._read + columns, self.prefilling[0].length)

    def chunk_done(self) -> bool:
        return True

    def collect_chunk(self) -> StepOutcome[SimulatedRow]:
        rows, begin, end = self.prefilling, self._read, self._chunk_end()
        read = sum(min(row.length, end) - begin for row in rows)
        cached = len(rows) * self._kept if begin == self._kept else 0
        ended = [row for row in rows if row.length <= end]
        tally = StepStats(prompt=read, pad=len(rows) * (end - begin) - read, generated=len(ended), cached=cached)
        self._read, self.prefilling = end, [row for row in rows if row.length > end]
        for row in ended:
            self.prefixes.keep(row.prompt, row.cache_scope, _block, row.back_within)
            row.step += 1
            row.kv = SimulatedKv(row.cached_tokens, in_host_memory=False)
        return StepOutcome([row.report() for row in ended], tally=tally, read=ended)

    def settle(self) -> StepOutcome[SimulatedRow]:
        return StepOutcome()

    def enter(self, rows: Sequence[SimulatedRow]) -> StepOutcome[SimulatedRow]:
        running, live = len(self.batch), self.batch.live
        lengths = [row.length for row in rows]
        pad = (running + len(rows)) * max(lengths) - sum(lengths) - running
        tally = StepStats(prompt=sum(lengths), pad=pad, generated=live + len(rows), invalid=running - live)
        self.batch.enter(rows)
        return StepOutcome([row.report() for row in rows] + self._look(), tally=tally)

    def step(self, iterations: int) -> StepOutcome[SimulatedRow]:
        tally = self.batch.tally(iterations)
        self.batch.step(iterations)
        return StepOutcome(self._look(), tally=tally)

    def _look(self) -> list[RowUpdate]:
        updates = [row.report() for row in self.batch.just_ended()]
        if not self._closed and self.batch.iterations - self._glance >= GLANCE:
            self._glance = self.batch.iterations
            updates += self.unreported(self.batch.rows)
        return updates

    @property
    def _closed(self) -> bool:
        return any(row.group.terms.closed for row in self.batch.rows[:1])


def _block(columns: slice) -> SimulatedKv:
    return SimulatedKv(columns.stop - columns.start, in_host_memory=True)
