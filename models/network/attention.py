"""Attention over borrowed K and V, never copied: grouped queries share a head in the kernel, or fold into the query
axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.network.packing import packs

# queries of a kernel call in prefill; chunks at multiples change no numbers
QUERY_BLOCK = 64

# rows x columns from which gapless K and V are multiplied as batches: half the fused kernel's time with many rows
LEAST_CELLS = 512


@cache
def multiplies_batches(dtype: torch.dtype, device: torch.device) -> bool:
    """In bfloat16, by oneDNN; torch would copy gaps."""
    return dtype is torch.bfloat16 and packs(dtype, device)


def reads_whole_pitch(rows: int, pitch: int) -> bool:
    """`pitch`: columns between two rows."""
    return rows * pitch >= LEAST_CELLS


@dataclass(frozen=True, slots=True)
class Causal:
    """New tokens last, each reading up to its own column."""

    _triangles: dict[int, Tensor] = field(default_factory=dict)  # by columns

    def triangle(self, new: int, columns: int, query: Tensor) -> Tensor:
        """(new, columns): 0 or -inf."""
        if columns not in self._triangles:
            blocked = torch.full((new, columns), -torch.inf, dtype=query.dtype, device=query.device)
            self._triangles[columns] = blocked.triu_(columns - new + 1)
        return self._triangles[columns]


# of query (rows, heads, dim), key and value (tokens, kv_heads, dim), runs and scale -> (rows, heads, dim)
VarlenAttention: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Runs, float | None], Tensor]"


@dataclass(frozen=True, slots=True)
class Runs:
    """A run in memory (tokens, kv_heads, dim) for one new token a row; on the device, so that a captured pass serves
    any.
    """

    starts: Tensor  # (rows + 1,) int32; the last is unused
    lengths: Tensor  # (rows,) int32, at least 1
    places: Tensor  # (rows + 1,) int32: 0, 1, ...
    longest: int  # bound of all lengths
    attention: VarlenAttention


# what new tokens may read: a tensor as in `masked_attention`, runs; None: causal
Mask = Tensor | Causal | Runs | None

Select = tuple[Tensor, Tensor] | None  # rows and places, each (k,); None: all


def has_flash(dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
    sized = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256
    # ROCm takes no lengths of runs
    built = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    return device.type == "cuda" and sized and built and torch.cuda.get_device_capability(device) >= (8, 0)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
    """Variable-length, without mask or copied heads; unchecked."""
    found: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, runs.places, runs.starts, 1, runs.longest, 0.0, False, False,
        scale=scale, seqused_k=runs.lengths,
    )[0]  # fmt: skip
    return found


def gather_attention(query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
    """In plain torch: `longest` cells of each row, masked."""
    starts = runs.starts[:-1, None]
    cells = starts + runs.lengths[:, None] + torch.arange(-runs.longest, 0, device=starts.device)
    own = cells >= starts
    keys, values = (each[cells.clamp(min=0)].transpose(1, 2) for each in (key, value))
    mask = prepare_mask(own[:, None, None], 1, query.dtype, key.shape[1])
    return attend(query.unsqueeze(2), keys, values, mask, scale).squeeze(2)


def prepare_mask(mask: Mask, new: int, dtype: torch.dtype, kv_heads: int) -> Mask:
    """For all layers: an addend, for one new token (rows, kv_heads, 1, columns), else with second size 1."""
    if mask is None and new > 1:
        return Causal()
    if not isinstance(mask, Tensor):
        return mask
    spread = mask.expand(-1, kv_heads if new == 1 else -1, -1, -1)
    addend = torch.zeros(spread.shape, dtype=dtype, device=mask.device)
    return addend.masked_fill_(spread.logical_not(), torch.finfo(dtype).min)


def masked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """For transformers' AttentionInterface.

        query           (rows, heads, new, dim)
        key, value      (rows, kv_heads, columns, dim)
        attention_mask  (rows or 1, 1, new, columns), True: readable; None: causal, new tokens last
        returns         (rows, new, heads, dim)

    Raises ValueError for unsupported extras.
    """
    if softcap is not None or s_aux is not None or position_bias is not None:
        raise ValueError("this network needs soft-capped, sink or biased attention, which is not supported")
    mask = prepare_mask(attention_mask, query.shape[2], query.dtype, key.shape[1])
    return attend(query, key, value, mask, scaling).transpose(1, 2), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """With a prepared mask; for runs, key and value are (tokens, kv_heads, dim). Returns (rows, heads, new, dim)."""
    if isinstance(mask, Causal):
        return _causal(query, key, value, mask, scale)
    if isinstance(mask, Runs):
        return mask.attention(query.squeeze(2), key, value, mask, scale).unsqueeze(2)
    return _attend(query, key, value, mask, scale)


def _causal(query: Tensor, key: Tensor, value: Tensor, causal: Causal, scale: float | None) -> Tensor:
    """By blocks of queries.

             0     begin  columns
    block 0  .....t               '.' readable   't' triangle
    block 1  ..........t
    """
    new = query.shape[2]
    size = new if query.is_cuda else QUERY_BLOCK  # GPUs want few kernels
    begin, blocks = key.shape[2] - new, []
    for first in range(0, new, size):
        last = min(first + size, new)
        end = begin + last
        mask = None if end == last - first else causal.triangle(last - first, end, query)
        blocks.append(_attend(query[:, :, first:last], key[:, :, :end], value[:, :, :end], mask, scale))
    return torch.cat(blocks, dim=2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    if mask is not None and query.shape[2] == 1 and _is_batch(key):
        return _multiply_batches(query, key, value, mask, scale)
    folds = mask is not None if query.is_cuda else query.shape[2] == 1 and not _has_amx()
    return (_folded if folds else _grouped)(query, key, value, mask, scale)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    causal = mask is None and query.shape[2] > 1
    groups = query.shape[1] != key.shape[1]
    mask = mask if mask is None or mask.dim() == 2 else mask[:, :1]
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=groups)


@cache
def _has_amx() -> bool:
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Queries (rows, kv_heads * group, new, dim) as (rows, kv_heads, group * new, dim): CUDA's masked kernels would
    copy K and V; on a CPU without AMX five times as fast in bfloat16, with AMX a quarter slower.
    """
    rows, heads, new, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * new, dim)
    if mask is not None and new > 1:
        mask = torch.cat([mask] * group, dim=-2)
    return F.scaled_dot_product_attention(folded, key, value, mask, scale=scale).reshape(rows, heads, new, dim)


def _is_batch(key: Tensor) -> bool:
    rows, _, columns, _ = key.shape
    return multiplies_batches(key.dtype, key.device) and key.is_contiguous() and reads_whole_pitch(rows, columns)


def _multiply_batches(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """One new token a row.

    queries (rows * kv_heads, group, dim) @ keys (rows * kv_heads, dim, columns) scores (rows * kv_heads, group,
    columns) @ values (rows * kv_heads, columns, dim)
    """
    rows, heads, _, dim = query.shape
    kv_heads, columns = key.shape[1:3]
    folded = query.reshape(rows * kv_heads, -1, dim)
    scale = 1 / math.sqrt(dim) if scale is None else scale
    added = mask.expand(rows, kv_heads, 1, columns).reshape(-1, 1, columns)
    scores = torch.baddbmm(added, folded, key.flatten(0, 1).transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value.flatten(0, 1)).view(rows, heads, 1, dim)
