"""The running batch of a simulated device and its rows: lengths in place of tokens, rows x columns in closed form,
so that many iterations are one addition.

The batch counts its iterations and the columns it has opened; a row's length is what it was when the row joined, and
what was counted since. Knows no rank and no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.device import DeviceRow
from engine.messages import BatchShape, FinishReason, RowSpec, RowUpdate, Tally

TOKEN = 0
"""The id of every token generated here: none is read, but they are counted."""


@dataclass(frozen=True, slots=True)
class SimulatedKv:
    """K and V of a row outside the batch."""

    bytes: int
    in_host_memory: bool


class SimulatedRow(DeviceRow):
    """One sequence."""

    kv: SimulatedKv | None
    step = 0
    """Tokens made so far; while the row runs, as of `since`."""
    reported = 0
    """Tokens reported so far."""
    since = 0
    """The batch's iteration at which it joined."""
    offset = 0
    """Columns of the row less those that the batch had opened when it joined."""
    own = 0
    """Its tokens with K and V, less those that it gets in the batch's iterations so far."""
    ends_at = 0
    """The batch's iteration that brings its last token."""
    words: Sequence[str] = ()
    """Its answer's text, a word a token, over and over; none where no text is told."""

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec)
        most, replayed = spec.sampling.max_tokens, spec.sampling.replay_tokens
        self.total = most if replayed is None else min(replayed, most)
        """Tokens that it will have generated at its end."""

    @property
    def ended(self) -> bool:
        return self.step >= self.total

    def report(self) -> RowUpdate:
        """All tokens that were not reported yet."""
        begin, self.reported = self.reported, self.step
        replayed = self.total == self.sampling.replay_tokens  # ended as the recorded one did, by an end token
        words, count = self.words, self.step - begin
        return RowUpdate(
            self.row_id,
            (TOKEN,) * count,
            "".join([words[place % len(words)] for place in range(begin, self.step)]) if words else "",
            cached_prompt=0 if begin else self.cached_prompt,
            finish_reason=(FinishReason.STOP if replayed else FinishReason.LENGTH) if self.ended else None,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sums over the rows that hold until one joins, leaves or ends."""

    farthest: int
    """The greatest offset of a row."""
    live: int
    next_end: int
    """The first iteration that brings a live row to its end."""
    own: int
    """Tokens of the live rows, had the batch done no iteration yet."""


class SimulatedBatch:
    """A `Batch` of engine.device: rows that decode together within `capacity_tokens` cells."""

    def __init__(self, capacity_tokens: int, max_rows: int, headroom: int, *, reads_padding: bool = True) -> None:
        """`reads_padding`: whether an iteration reads the window for each row, else a row's own columns only."""
        self.capacity_tokens = capacity_tokens
        self.rows: list[SimulatedRow] = []
        self.iterations = 0
        self._max_rows = max_rows
        self._headroom = headroom
        self._reads_padding = reads_padding
        self._opened = 0  # columns since the start
        self._bounds: Bounds | None = None  # None: to be found anew

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def window(self) -> int:
        """Columns that an iteration reads, its own not among them."""
        return self._found.farthest + self._opened if self.rows else 0

    @property
    def cells(self) -> int:
        """Cells that an iteration reads, its own column not among them."""
        if self._reads_padding:
            return len(self) * self.window
        return sum(row.offset for row in self.rows) + len(self) * self._opened

    @property
    def live(self) -> int:
        """Rows that have not ended."""
        return self._found.live

    @property
    def until_next_end(self) -> int | None:
        """Iterations until the next row ends; None when all have."""
        return self._found.next_end - self.iterations if self._found.live else None

    @property
    def room(self) -> int:
        """Iterations until the rows fill the memory."""
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
        """Let a row join, as of the iterations `under_way` without it; its columns are its own tokens only."""
        row.since, row.offset = self.iterations + under_way, row.cached_tokens - self._opened - under_way
        row.own = row.cached_tokens - row.since
        row.ends_at = row.since + row.total - row.step
        self.rows.append(row)
        self._bounds = None

    def remove(self, row: SimulatedRow, *, wipe: bool = False) -> None:
        """Let a row leave, with what it has generated here."""
        self.settle(row)
        self.rows.remove(row)
        self._bounds = None

    def settle(self, row: SimulatedRow) -> None:
        """Count up to now what a row has generated; one that has ended generates nothing of its own any more."""
        made = max(0, self.iterations - row.since)
        row.step, row.since = min(row.step + made, row.total), row.since + made

    def tally(self, iterations: int) -> Tally:
        """Tokens that so many iterations, the next ones, compute and read; no row may end before the last of them."""
        live, ended = self.live, len(self) - self.live
        grown = iterations * (iterations + 1) // 2  # columns that they open, as often as each is read
        reads = iterations * self.cells + len(self) * grown
        own = iterations * (self._found.own + live * self.iterations) + live * grown
        invalid = ended * (iterations * self.window + grown) if self._reads_padding else reads - own
        return Tally(
            generated=live * iterations,
            invalid=ended * iterations,
            reads=reads,
            pad_reads=reads - own - invalid,
            invalid_reads=invalid,
        )

    def step(self, iterations: int) -> None:
        """Decode; no row may end before the last of these iterations."""
        self.iterations += iterations
        self._opened += iterations

    def enter(self, joining: Sequence[SimulatedRow]) -> None:
        """An iteration in which rows enter with their prompts: every row before them gets as many columns."""
        self.iterations += 1
        self._opened += max(row.length for row in joining)
        for row in joining:
            row.step += 1
            self.insert(row)

    def resize(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens

    def check(self) -> None:
        """Assert that all rows fit; for tests."""
        assert len(self) * self.window <= self.capacity_tokens

    def just_ended(self) -> list[SimulatedRow]:
        """The rows that the latest iteration brought to their end, settled."""
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
    def _found(self) -> Bounds:
        if self._bounds is None:
            live = [row for row in self.rows if row.ends_at > self.iterations]
            farthest = max((row.offset for row in self.rows), default=0)
            own = sum(row.own for row in live)
            self._bounds = Bounds(farthest, len(live), min((row.ends_at for row in live), default=0), own)
        return self._bounds
