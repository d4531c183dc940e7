"""Memory of KV caches, and copies of rows into it."""

import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kv.row_kv import RowKv
from engine.transfer import move
from models.network.kv_store import KvShape

Joining = Sequence[tuple[int, RowKv]]  # by place


def zeros(shape: KvShape, per_layer: int) -> Tensor:
    """(layers, per_layer), as NaN in masked cells spreads. On a CPU mmap's zero pages in small pages: torch.zeros
    wrote 6 GB in 9 s, and huge pages stalled first steps.
    """
    if shape.device.type != "cpu" or not per_layer:
        return torch.zeros((shape.layers, per_layer), dtype=shape.dtype, device=shape.device)
    memory = mmap.mmap(-1, shape.layers * per_layer * shape.dtype.itemsize)
    return torch.frombuffer(memory, dtype=shape.dtype).view(shape.layers, per_layer)


def copy_rows(buffers: Sequence[Tensor], joining: Joining, starts: Sequence[int]) -> None:
    """Into (layers, rows, kv_heads, columns, head_dim), from the columns `starts` on."""
    for (row, kv), start in zip(joining, starts, strict=True):
        for buffer, part in zip(buffers, (kv.keys, kv.values), strict=True):
            buffer[:, row, :, start : start + kv.length] = part


def copy_runs(buffers: Sequence[Tensor], pitch: int, joining: Joining, starts: Sequence[int]) -> bool:
    """Into (layers, tokens, kv_heads, head_dim), `pitch` tokens a row, all rows at once; False where memory lacks."""
    device = buffers[0].device
    first = [row * pitch + start for (row, _), start in zip(joining, starts, strict=True)]
    runs = [np.arange(begin, begin + kv.length) for begin, (_, kv) in zip(first, joining, strict=True)]
    try:
        at = move(torch.from_numpy(np.concatenate(runs)), device)
        for buffer, parts in zip(buffers, zip(*((kv.keys, kv.values) for _, kv in joining), strict=True), strict=True):
            there = [part.to(device, non_blocking=True) for part in parts]
            whole = there[0] if len(there) == 1 else torch.cat(there, dim=2)
            buffer.index_copy_(1, at, whole.transpose(1, 2))
    except (torch.OutOfMemoryError, MemoryError):
        return False
    return True
