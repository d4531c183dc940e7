"""A simulated batch in closed form: iterations and columns are counted, and lengths derived."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.device import DeviceRow
from engine.messages import BatchShape, FinishReason, RowSpec, RowUpdate, StepStats

TOKEN = 0  # never read


@dataclass(frozen=True, slots=True)
class SimulatedKv:
    bytes: int
    in_host_memory: bool


class SimulatedRow(DeviceRow):
    kv: SimulatedKv | None
    step = 0  # tokens, as of `since`
    reported = 0  # tokens
    since = 0  # iteration of joining
    offset = 0  # columns less those opened before joining
    own = 0  # cached tokens less iterations so far
    ends_at = 0  # iteration of its last token

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec)
        most, replayed = spec.sampling.max_tokens, spec.sampling.replay_tokens
        self.total = most if replayed is None else min(replayed, most)

    @property
    def ended(self) -> bool:
        return self.step >= self.total

    def report(self) -> RowUpdate:
        begin, self.reported = self.reported, self.step
        end = FinishReason.STOP if self.total == self.sampling.replay_tokens else FinishReason.LENGTH  # as recorded
        tokens, cached = (TOKEN,) * (self.step - begin), 0 if begin else self.cached_prompt
        return RowUpdate(self.row_id, tokens, cached_prompt=cached, finish_reason=end if self.ended else None)


@dataclass(frozen=True, slots=True)
class RowSums:
    """Valid until a row joins, leaves or ends."""

    farthest: int
    live: int
    next_end: int
    own: int  # at iteration 0


class SimulatedBatch:
    def __init__(self, capacity_tokens: int, max_rows: int, headroom: int, *, reads_padding: bool = True) -> None:
        """`reads_padding`: the whole window."""
        self.capacity_tokens = capacity_tokens
        self.rows: list[SimulatedRow] = []
        self.iterations = 0
        self._max_rows = max_rows
        self._headroom = headroom
        self._reads_padding = reads_padding
        self._opened = 0
        self._bounds: RowSums | None = None  # None: recompute

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def window(self) -> int:
        return self._found.farthest + self._opened if self.rows else 0

    @property
    def cells(self) -> int:
        if self._reads_padding:
            return len(self) * self.window
        return sum(row.offset for row in self.rows) + len(self) * self._opened

    @property
    def live(self) -> int:
        return self._found.live

    @property
    def until_next_end(self) -> int | None:
        return self._found.next_end - self.iterations if self._found.live else None

    @property
    def room(self) -> int:
        return self.capacity_tokens // len(self) - self.window

    def can_step(self) -> bool:
        return self.room >= 1

    def shape(self, staged: int) -> BatchShape:
        return BatchShape(len(self), staged, 0, self.window, self.window, self.capacity_tokens)

    def fits(self, length: int, *, lasting: bool = True) -> bool:
        return self._has_room(len(self) + 1, max(self.window, length), lasting=lasting)

    def admits(self, lengths: Sequence[int]) -> bool:
        return self._has_room(len(self) + len(lengths), self.window + max(lengths) - 1)

    def insert(self, row: SimulatedRow, under_way: int = 0) -> None:
        """After the `under_way` iterations."""
        row.since, row.offset = self.iterations + under_way, row.cached_tokens - self._opened - under_way
        row.own = row.cached_tokens - row.since
        row.ends_at = row.since + row.total - row.step
        self.rows.append(row)
        self._bounds = None

    def remove(self, row: SimulatedRow, *, wipe: bool = False) -> None:
        self.settle(row)
        self.rows.remove(row)
        self._bounds = None

    def settle(self, row: SimulatedRow) -> None:
        made = max(0, self.iterations - row.since)
        row.step, row.since = min(row.step + made, row.total), row.since + made

    def tally(self, iterations: int) -> StepStats:
        """Of the next iterations, in which no row ends early."""
        live, ended = self.live, len(self) - self.live
        grown = iterations * (iterations + 1) // 2  # reads of new columns
        reads = iterations * self.cells + len(self) * grown
        own = iterations * (self._found.own + live * self.iterations) + live * grown
        invalid = ended * (iterations * self.window + grown) if self._reads_padding else reads - own
        made, pad = live * iterations, reads - own - invalid
        return StepStats(generated=made, invalid=ended * iterations, reads=reads, pad_reads=pad, invalid_reads=invalid)

    def step(self, iterations: int) -> None:
        """No row may end early."""
        self.iterations += iterations
        self._opened += iterations

    def enter(self, joining: Sequence[SimulatedRow]) -> None:
        """By shape; the others get as many columns."""
        self.iterations += 1
        self._opened += max(row.length for row in joining)
        for row in joining:
            row.step += 1
            self.insert(row)

    def resize(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens

    def just_ended(self) -> list[SimulatedRow]:
        if self._bounds is not None and self._bounds.next_end > self.iterations:
            return []
        self._bounds = None
        ended = [row for row in self.rows if row.reported < row.total and row.ends_at <= self.iterations]
        for row in ended:
            self.settle(row)
        return ended

    def _has_room(self, rows: int, window: int, *, lasting: bool = True) -> bool:
        needed = window + 1 + self._headroom if lasting and rows > 1 else window + 1
        return rows <= self._max_rows and rows * needed <= self.capacity_tokens

    @property
    def _found(self) -> RowSums:
        if self._bounds is None:
            live = [row for row in self.rows if row.ends_at > self.iterations]
            farthest = max((row.offset for row in self.rows), default=0)
            own = sum(row.own for row in live)
            self._bounds = RowSums(farthest, len(live), min((row.ends_at for row in live), default=0), own)
        return self._bounds
