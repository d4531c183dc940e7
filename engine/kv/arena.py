"""A device's KV memory.

Geometry (Baton, 4.1; end-aligned): all rows write the same column in a step.

              start  end      columns
    row 0     ...ppppggg|     |       '.' padding  'p' prompt  'g' generated
    row 1     ppppppppgg|free |
    row 2     ........pp|     |       just inserted, end-aligned
                          pitch       columns of memory between two rows, at most `columns`

Row r owns [origin[r], end), but for holes: when row 3 enters by shape with three tokens, the others write one.

    row 0     ...ppppggg..g|  |
    row 3     ..........ppp|  |

K is stored after RoPE.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv.memory import copy_rows, copy_runs, zeros
from engine.kv.row_kv import RowKv, to_host
from engine.transfer import send
from models.network.attention import has_flash, multiplies_batches, reads_whole_pitch
from models.network.kv_store import KvCells, KvShape

MOST_JOINING = 4096  # tokens copied at once; put together in memory first, their K are 256 MiB of an 8B

ROOM = 64  # spare columns: more are read in vain, fewer mean more copies


class ArenaFull(Exception):
    """Slide, reshape or take a row out."""


class KvArena:
    """A budget of `capacity_tokens`, taken once; the batch is a view of it, rows x columns.

        view    (layers, rows, kv_heads, pitch, head_dim)
        tokens  (layers, capacity_tokens + 1, kv_heads, head_dim)     the same memory where it is `by_token`

    By token, a row's tokens are one run of memory in any view, and the last token belongs to no row. Otherwise all
    tokens of a head are adjacent, as CPU kernels want them.

    Invariants:
    - live rows are 0..live-1, and `0 <= start <= origin[r] <= end <= pitch <= columns`
    - `valid[r, c]`: column c holds one of row r's `lengths[r]` tokens, the first in `origin[r]`; False elsewhere
    - buffers are finite, their addresses stay
    """

    def __init__(self, shape: KvShape, capacity_tokens: int, *, max_rows: int, by_token: bool | None = None) -> None:
        """`by_token` None: with flash attention."""
        self.shape = shape
        self.by_token = has_flash(shape.dtype, shape.head_dim, shape.device) if by_token is None else by_token
        self._most_rows = max_rows
        self._room = ROOM if multiplies_batches(shape.dtype, shape.device) else None  # None: all
        self.origins: list[int] = []
        self.holes: list[int] = []  # cells without a token
        self.end = self._filled = 0  # columns up to `_filled` are noted in `valid`
        self._stale = False  # `valid` is to be noted from rows without holes
        self._joining: list[tuple[int, RowKv]] = []  # places, not copied yet
        self.layout = 0  # changes with rows and places, but not with steps
        self._take(capacity_tokens)

    @property
    def live(self) -> int:
        return len(self.origins)

    @property
    def start(self) -> int:
        """First used column; `end` without rows."""
        return min(self.origins, default=self.end)

    @property
    def window(self) -> int:
        return self.end - self.start

    @property
    def lengths(self) -> list[int]:
        return [self.end - origin - holes for origin, holes in zip(self.origins, self.holes, strict=True)]

    @property
    def valid(self) -> Tensor:
        """Noted when it is read, as attention by runs needs none."""
        with torch.inference_mode():  # as buffers may have been taken in it
            if self._stale:
                columns = torch.arange(self.pitch, device=self.shape.device)
                origins = send(self.origins, self.shape.device)[:, None]
                self._flat_valid.zero_()
                self._valid[: self.live] = (columns >= origins) & (columns < self.end)
                self._stale = False
            elif self._filled < self.end:
                self._valid[: self.live, self._filled : self.end] = True
            self._filled = self.end
            return self._valid

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """K and V (layers, rows, kv_heads, pitch, head_dim), views."""
        self._copy_joining()
        return self._keys, self._values

    def _read(self, width: int) -> slice:
        whole = self._room is not None and width == 1 and reads_whole_pitch(self.live, self.pitch)
        return slice(0, self.pitch) if whole else slice(self.start, self.end)

    def mask(self, width: int = 1) -> Tensor | None:
        """(live, 1, width, read) for the newest columns; None: all readable. A cell without a token reads itself,
        lest softmax be NaN.
        """
        read = self._read(width)
        if width == 1 and all(length == read.stop - read.start for length in self.lengths):
            return None
        valid = self.valid[: self.live, None, None, read]
        if width == 1:
            return valid
        columns = torch.arange(self.window, device=self.shape.device)
        asking = columns[-width:, None]
        return (valid & (columns <= asking)) | (columns == asking)

    @property
    def has_holes(self) -> bool:
        return any(self.holes)

    def starts(self) -> list[int]:
        """First token of each live row in `tokens`."""
        return [row * self.pitch + origin for row, origin in enumerate(self.origins)]

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """In place until `resize`."""
        assert self.by_token
        self._copy_joining()
        return self._tokens()

    def _tokens(self) -> tuple[Tensor, Tensor]:
        layout = (self.shape.layers, -1, self.shape.kv_heads, self.shape.head_dim)
        return self._flat_keys.view(layout), self._flat_values.view(layout)

    def insert(self, kv: RowKv) -> int:
        """End-aligned (Baton, 4.2); returns its index. Raises ArenaFull."""
        if self.live == self.rows or max(kv.length, self.window) > self.columns:
            raise ArenaFull(f"row of {kv.length} tokens into {self.live}/{self.rows} rows x {self.columns} columns")
        if kv.length > self.end:
            self._lay_out(self.rows, self.columns, kv.length - self.window)
        row, origin = self.live, self.end - kv.length
        self._joining.append((row, kv))
        if self.has_holes:
            self.valid[row] = False
            self.valid[row, origin : self.end] = True
        else:
            self._stale = True
        self.origins.append(origin)
        self.holes.append(0)
        self.layout += 1
        if not self.by_token or sum(each.length for _, each in self._joining) > MOST_JOINING:
            self._copy_joining()
        return row

    def _copy_joining(self) -> None:
        """By token all rows in one go, unless memory lacks."""
        joining, self._joining = self._joining, []
        starts = [self.origins[row] for row, _ in joining]
        if joining and not (self.by_token and copy_runs(self._tokens(), self.pitch, joining, starts)):
            copy_rows((self._keys, self._values), joining, starts)

    def remove(self, row: int, *, wipe: bool = False) -> None:
        """The last row takes its place. `wipe` after NaN."""
        last, window, own = self.live - 1, slice(self.start, self.end), slice(self.origins[-1], self.end)
        for buffer in self.buffers:
            if wipe:
                buffer[:, row, :, window] = 0
            if row != last:
                buffer[:, row, :, own] = buffer[:, last, :, own]
            if wipe:
                buffer[:, last, :, window] = 0  # it may hold NaN too
        if self.has_holes:
            self.valid[row] = self.valid[last]
            self.valid[last] = False
        else:
            self._stale = True
        self.origins[row], self.holes[row] = self.origins[last], self.holes[last]
        del self.origins[last], self.holes[last]
        self.layout += 1
        if not self.origins:
            self.end = self._filled = 0
            self._view(self.max_rows, self.capacity_tokens // max(1, self.max_rows))

    def extract(self, row: int) -> RowKv:
        """To host memory, without holes; the row stays."""
        cells = slice(self.origins[row], self.end)
        parts = [buffer[:, row, :, cells] for buffer in self.buffers]
        if self.holes[row]:
            parts = [part[:, :, self.valid[row, cells]] for part in parts]
        return RowKv(*(to_host(part) for part in parts))

    def reshape(self, rows: int, columns: int) -> None:
        """Raises ArenaFull. Needs one layer's window more."""
        if rows < self.live or columns < self.window or rows * columns > self.capacity_tokens:
            raise ArenaFull(f"{self.live} rows x {self.window} columns do not fit {rows} x {columns}")
        self._lay_out(rows, columns, 0)

    def resize(self, capacity_tokens: int) -> None:
        assert not self.origins, "rows must be swapped out first"
        self._flat_keys = self._flat_values = self._keys = self._values = torch.empty(0)
        if self.shape.device.type == "cuda":
            torch.cuda.empty_cache()
        while True:
            try:
                return self._take(capacity_tokens)
            except (RuntimeError, MemoryError, OSError):
                if not capacity_tokens:
                    raise
                capacity_tokens //= 2

    def open(self, joining: Sequence[int] = ()) -> int:
        """Open the step's columns, for rows of lengths `joining` too (Baton's shape, 4.1), sliding to the front
        where needed or worth it (Baton's release); returns how many. Raises ArenaFull.
        """
        width = max(joining, default=1)
        if self.live + len(joining) > self.rows or self.window + width > self.columns:
            raise ArenaFull(f"{width} more columns, {len(joining)} more rows in {self.rows} x {self.columns}")
        self._copy_joining()
        wasted = self.pitch - self.window - self.window // 4
        if self.end + width > self.pitch or (self._room is not None and wasted > 2 * self._room):
            self._lay_out(self.rows, self.columns, 0, width)
        if not joining:
            self.end += 1
            return 1
        valid = self.valid
        self.end = self._filled = self.end + width
        valid[: self.live, self.end - 1] = True
        self.holes = [holes + width - 1 for holes in self.holes]
        for length in joining:
            valid[self.live, self.end - length : self.end] = True
            self.holes.append(0)
            self.origins.append(self.end - length)
        self.layout += 1
        return width

    def close(self, width: int, joined: int = 0) -> None:
        if width == 1 and not self.has_holes:
            self._stale = True
        else:
            self.valid[:, self.end - width : self.end] = False
        del self.origins[len(self.origins) - joined :], self.holes[len(self.holes) - joined :]
        self.holes = [holes - width + 1 for holes in self.holes]
        self.end = self._filled = self.end - width
        self.layout += joined

    def begin_pass(self, rows: int, new: int) -> KvCells:
        newest = slice(self.end - new, self.end)
        keys, values = self.buffers
        return KvCells(keys[:, :rows], values[:, :rows], newest, self._read(new))

    def _lay_out(self, rows: int, columns: int, to: int, more: int = 0) -> None:
        """The window goes to column `to` with `more` columns behind; copied by layer, as cells overlap."""
        before = self.buffers
        live, cells = self.live, slice(self.start, self.end)
        target = slice(to, to + self.window)
        window = torch.empty_like(before[0][0, :live, :, cells])  # first: a failure changes nothing
        valid = self.valid[:live, cells].clone() if self.has_holes else None
        self._view(rows, columns, target.stop + more)
        for layer in range(self.shape.layers):
            for old, new in zip(before, (self._keys, self._values), strict=True):
                window.copy_(old[layer, :live, :, cells])
                new[layer, :live, :, target] = window
        if valid is not None:
            self._valid[:live, target] = valid
        self._stale = valid is None
        self.origins = [origin + to - cells.start for origin in self.origins]
        self.end = self._filled = target.stop
        self.layout += 1

    def _take(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.max_rows = min(self._most_rows, capacity_tokens)
        cells = (capacity_tokens + self.by_token) * self.shape.kv_heads * self.shape.head_dim
        self._flat_keys, self._flat_values = zeros(self.shape, cells), zeros(self.shape, cells)
        self._flat_valid = torch.zeros(capacity_tokens, dtype=torch.bool, device=self.shape.device)
        self._view(self.max_rows, capacity_tokens // max(1, self.max_rows))

    def _view(self, rows: int, columns: int, needed: int = 0) -> None:
        """(layers, rows, kv_heads, pitch, head_dim); cannot fail. `needed` columns at least."""
        self.rows, self.columns = rows, columns
        self.pitch = columns if self._room is None else min(needed + self._room, columns)
        layers, heads, dim = self.shape.layers, self.shape.kv_heads, self.shape.head_dim
        inner = (self.pitch, heads) if self.by_token else (heads, self.pitch)
        used = rows * self.pitch * heads * dim
        views = [flat[:, :used].view(layers, rows, *inner, dim) for flat in (self._flat_keys, self._flat_values)]
        self._keys, self._values = (view.transpose(2, 3) for view in views) if self.by_token else views
        self._valid = self._flat_valid[: rows * self.pitch].view(rows, self.pitch)
        self._flat_valid.zero_()
