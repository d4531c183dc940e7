"""The memory of an arena: one flat budget of cells for K and V, and the view of it as rows x columns.

    flat    (layers, capacity_tokens * kv_heads * head_dim)
    view    (layers, rows, kv_heads, pitch, head_dim)     the first `rows * pitch` cells of each layer, pitch <= columns

It knows no row that is live, and moves nothing.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from models.network.attention import multiplies_batches
from models.network.kv_adapter import KvShape

ROOM = 64
"""Columns beyond the window that memory is laid out for where all of them are read: more of them are read in vain at
each step, with fewer of them the window is copied more often."""


class ArenaMemory:
    """Takes `capacity_tokens` cells at construction, a view of which are `keys`, `values` and `valid`."""

    def __init__(self, shape: KvShape, capacity_tokens: int, *, max_rows: int) -> None:
        self.shape = shape
        self._most_rows = max_rows
        # Columns that memory is laid out for beyond those needed; None: for all that there may be.
        self._room = ROOM if multiplies_batches(shape.dtype, shape.device) else None
        self._take(capacity_tokens)

    def _take(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.max_rows = min(self._most_rows, capacity_tokens)
        token = self.shape.kv_heads * self.shape.head_dim
        self._flat_keys = zeros(self.shape, capacity_tokens * token)
        self._flat_values = zeros(self.shape, capacity_tokens * token)
        self._flat_valid = torch.zeros(capacity_tokens, dtype=torch.bool, device=self.shape.device)
        self._view(self.max_rows, capacity_tokens // max(1, self.max_rows))

    def _take_anew(self, capacity_tokens: int) -> None:
        """Free the buffers, then take others. Where the device has not so much, half of it is tried, and so on, down to
        nothing.
        """
        self._flat_keys = self._flat_values = self.keys = self.values = torch.empty(0)
        if self.shape.device.type == "cuda":
            torch.cuda.empty_cache()
        while True:
            try:
                return self._take(capacity_tokens)
            except (RuntimeError, MemoryError, OSError):
                if capacity_tokens == 0:
                    raise
                capacity_tokens //= 2

    def _view_anew(self) -> None:
        """The proportions that an empty arena has: as many rows as there may be."""
        view = self.max_rows, self.capacity_tokens // self.max_rows
        if view != (self.rows, self.columns):
            self._view(*view)

    def _view(self, rows: int, columns: int, needed: int = 0) -> None:
        """Look at the flat budget as (layers, rows, kv_heads, pitch, head_dim). Takes no memory, so cannot fail.

        needed  columns that must be there; where attention reads all of them, there are few more
        """
        self.rows, self.columns = rows, columns
        self.pitch = columns if self._room is None else min(needed + self._room, columns)
        used = rows * self.pitch * self.shape.kv_heads * self.shape.head_dim
        layout = (self.shape.layers, rows, self.shape.kv_heads, self.pitch, self.shape.head_dim)
        self.keys = self._flat_keys[:, :used].view(layout)
        self.values = self._flat_values[:, :used].view(layout)
        self.valid = self._flat_valid[: rows * self.pitch].view(rows, self.pitch)
        self._flat_valid.zero_()


def zeros(shape: KvShape, per_layer: int) -> Tensor:
    """A buffer (layers, per_layer) of zeros: a masked cell that held NaN would still poison what attends to it.

    On a CPU the system hands out zero pages when they are first touched, so a large budget costs nothing until it
    is used; torch.zeros would write it all, which took 9 s for 6 GB. Small pages, as mmap's are by default: rows
    touch memory here and there, and clearing a huge page at each place stalled the first steps for seconds.
    """
    if shape.device.type != "cpu" or not per_layer:
        return torch.zeros((shape.layers, per_layer), dtype=shape.dtype, device=shape.device)
    memory = mmap.mmap(-1, shape.layers * per_layer * shape.dtype.itemsize)
    return torch.frombuffer(memory, dtype=shape.dtype).view(shape.layers, per_layer)
