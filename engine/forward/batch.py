"""The running batch: rows and their arena, kept in step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from engine.device import HEADROOM
from engine.forward.graphs import DecodeGraphs
from engine.kv.arena import ArenaFull, KvArena
from engine.kv.row_kv import RowKv
from engine.messages import BatchShape, StepStats
from engine.row import Row
from engine.transfer import send
from models.network.loader import LoadedModel


@dataclass(eq=False)
class RunningBatch:
    """Row i of the list is row i of the arena."""

    model: LoadedModel
    arena: KvArena
    _: KW_ONLY
    headroom: int = HEADROOM
    graphs: DecodeGraphs | None = None
    ahead: int = 0  # steps under way when rows come and go
    rows: list[Row] = field(default_factory=list)
    joined: set[Row] = field(default_factory=set)  # since the latest step

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def capacity_tokens(self) -> int:
        return self.arena.capacity_tokens

    def fits(self, length: int, *, lasting: bool = True) -> bool:
        return self._view_for(len(self) + 1, max(self.arena.window, length), lasting=lasting) is not None

    def admits(self, lengths: Sequence[int]) -> bool:
        return self._view_for(len(self) + len(lengths), self.arena.window + max(lengths) - 1) is not None

    def insert(self, row: Row, kv: RowKv, *, lasting: bool = True) -> None:
        """Raises ArenaFull unless `fits`."""
        self._show(self._view_for(len(self) + 1, max(self.arena.window, kv.length), lasting=lasting))
        self.arena.insert(kv)
        self.rows.append(row)
        self.joined.add(row)

    def remove(self, row: Row, *, wipe: bool = False) -> None:
        place = self.rows.index(row)
        self.joined.discard(row)
        self.arena.remove(place, wipe=wipe)
        last = self.rows.pop()
        if last is not row:
            self.rows[place] = last

    def extract(self, row: Row) -> RowKv:
        """Without tokens of steps under way."""
        kv = self.arena.extract(self.rows.index(row)).first(row.cached_tokens)
        self.remove(row)
        return kv

    def step(self, fed: Tensor | None = None) -> Tensor:
        """Logits (rows, vocab); `fed` (rows,) replaces newest tokens that the host has not read. Raises ArenaFull;
        failures change nothing.
        """
        with self._open(self._next_view()):
            logits = None
            if self.graphs is not None:
                logits = self.graphs.step([row.last_token for row in self.rows] if fed is None else fed)
            if logits is None:
                logits = self._forward([(row.last_token,) for row in self.rows], fed)
        self.joined.clear()
        return logits

    @contextmanager
    def _open(self, view: tuple[int, int] | None, joining: Sequence[int] = ()) -> Iterator[None]:
        self._show(view)
        width = self.arena.open(joining)
        try:
            yield
        except BaseException:
            self.arena.close(width, len(joining))
            raise

    def void(self, rows: Tensor) -> None:
        """Zero what the latest step wrote for the masked rows (rows,), as NaN would be read."""
        for buffer in self.arena.buffers:
            buffer[:, : len(rows), :, self.arena.end - 1].masked_fill_(rows[:, None, None], 0)

    def undo_step(self, joined: Sequence[Row] = ()) -> None:
        """Before any row takes its token."""
        self.arena.close(max((row.length for row in joined), default=1), len(joined))
        del self.rows[len(self.rows) - len(joined) :]

    def enter(self, joining: Sequence[Row]) -> Tensor:
        """Rows enter with their prompts (Baton's shape). Logits (rows, vocab), new rows last. Raises ArenaFull
        unless `admits`; failures change nothing.
        """
        lengths = [row.length for row in joining]
        with self._open(self._view_for(len(self) + len(joining), self.arena.window + max(lengths) - 1), lengths):
            logits = self._forward([*((row.last_token,) for row in self.rows), *(row.tokens for row in joining)])
        self.rows += joining
        return logits

    def _forward(self, fed: Sequence[Sequence[int]], newest: Tensor | None = None) -> Tensor:
        """Logits (rows, vocab) at each row's newest token; `fed` is end-aligned. Ended rows in their slots may
        outgrow the context.
        """
        device, width, most = self.model.device, max(len(part) for part in fed), self.model.context_length
        ends = [min(length, most) for length in self.arena.lengths]
        places = [range(end - len(part), end) for part, end in zip(fed, ends, strict=True)]
        inputs = [[[0] * (width - len(part)) + list(part) for part in side] for side in (fed, places)]
        tokens, positions = send(inputs, device)
        tokens = tokens if newest is None else newest[:, None]
        rows = torch.arange(len(fed), device=device)
        select = rows, torch.full_like(rows, width - 1)
        return self.model.forward(tokens, positions, self.arena.mask(width), self.arena, select)

    def can_step(self) -> bool:
        return self._next_view() is not None

    def _show(self, view: tuple[int, int] | None) -> None:
        if view is None:
            raise ArenaFull(f"no view of the budget has room beside {len(self)} rows of {self.arena.window} columns")
        if view != (self.arena.rows, self.arena.columns):
            self.arena.reshape(*view)

    def _next_view(self) -> tuple[int, int] | None:
        needed = self.arena.window + 1
        return self._find_view(len(self), needed, needed)

    def _view_for(self, rows: int, window: int, *, lasting: bool = True) -> tuple[int, int] | None:
        needed = window + 1 + (self.headroom if lasting and rows > 1 else 0)
        return self._find_view(rows, needed, 2 * needed)

    def _find_view(self, rows: int, columns: int, wanted_columns: int) -> tuple[int, int] | None:
        """The present view if it fits, else a new one."""
        arena = self.arena
        if rows <= arena.rows and columns <= arena.columns:
            return arena.rows, arena.columns
        return choose_view(arena.capacity_tokens, arena.max_rows, rows, columns, wanted_columns)

    def resize(self, capacity_tokens: int) -> None:
        """No row may run."""
        if self.graphs is not None:
            self.graphs.release()
        self.arena.resize(capacity_tokens)

    def reads(self) -> StepStats:
        """Cells of the latest step, before rows change."""
        arena, rows = self.arena, self.rows
        apart = self.model.reads_exactly or self.graphs is not None
        read = [arena.end - origin for origin in arena.origins] if apart else [arena.window] * len(rows)
        own = arena.lengths
        live = [place for place, row in enumerate(rows) if not row.ended]
        if len(live) < len(rows):
            own = [own[place] for place in live]
            by_live = sum(read[place] for place in live)
        else:
            by_live = sum(read)
        return StepStats(reads=sum(read), pad_reads=by_live - sum(own), invalid_reads=sum(read) - by_live)

    def shape(self, staged: int = 0) -> BatchShape:
        arena = self.arena
        return BatchShape(len(self), staged, arena.start, arena.end, arena.columns, arena.capacity_tokens)


def choose_view(capacity: int, max_rows: int, rows: int, columns: int, wanted_columns: int) -> tuple[int, int] | None:
    """At least rows x columns, with up to `wanted_columns`; None where it does not fit."""
    if rows > max_rows or rows * columns > capacity:
        return None
    most = max_rows
    while most > rows and capacity // most < wanted_columns:
        most //= 2
    chosen = max(rows, most)
    return chosen, capacity // chosen
