"""Attention over borrowed K and V, registered with transformers under the name `lengthwise`.

It never copies K and V: with grouped queries, either the kernel shares a K head among its group of Q heads, or
the group is folded into the query axis. It knows no rows, only a mask of what may be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from models.network.packing import packs

ATTENTION = "lengthwise"

QUERY_BLOCK = 64
"""Queries that read their columns in one kernel call where a prompt is read. Blocks begin where the pass begins: so how
many tokens a pass reads changes none of their numbers, as long as it begins at a multiple of this."""

LEAST_CELLS = 512
"""Cells, rows times columns, from which on K and V without gaps are multiplied as batches of matrices: half the time of
the fused kernel with many rows, twice its time with one row of a hundred columns."""


@cache
def multiplies_batches(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a decode step is faster with products of batches of matrices than with the fused kernel: in bfloat16, by
    oneDNN; in float32 there is no difference. torch would copy K and V that have gaps between rows.
    """
    return dtype is torch.bfloat16 and packs(dtype, device)


def reads_whole_pitch(rows: int, pitch: int) -> bool:
    """Whether so many rows are many enough for it, `pitch` being the columns of memory between two of them."""
    return rows * pitch >= LEAST_CELLS


@dataclass(frozen=True, slots=True)
class Spans:
    """The columns that one new token of each row may read: all from the row's origin to the end of all.

    Each row is read in a call of its own: beside padding its sums over columns would be grouped otherwise.
    """

    origins: tuple[int, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Causal:
    """New tokens that are those of the last columns: each reads all columns up to its own."""

    _triangles: dict[int, Tensor] = field(default_factory=dict)
    """Made once a pass, by the number of columns."""

    def triangle(self, new: int, columns: int, query: Tensor) -> Tensor:
        """(new, columns): 0 where the new tokens, those of the last columns, may read, else minus infinity."""
        if columns not in self._triangles:
            blocked = torch.full((new, columns), -torch.inf, dtype=query.dtype, device=query.device)
            self._triangles[columns] = blocked.triu_(columns - new + 1)
        return self._triangles[columns]


class VarlenAttention(Protocol):
    """Attention of one new token a row over the row's run of K and V."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
        """query (rows, heads, dim); key, value (tokens, kv_heads, dim) -> (rows, heads, dim)"""


@dataclass(frozen=True, slots=True)
class Runs:
    """The cells that one new token of each row may read: a run of tokens in memory (tokens, kv_heads, dim).

    Starts and lengths are read on the device, so that a captured pass serves any. K and V are handed to `attend` as all
    of that memory.
    """

    starts: Tensor
    """(rows + 1,) int32: the first token of each row's run; the last number is not read."""
    lengths: Tensor
    """(rows,) int32, each at least 1."""
    places: Tensor
    """(rows + 1,) int32: 0, 1 and so on, the place of each row's query."""
    longest: int
    """Bound of all lengths."""
    attention: VarlenAttention

    @staticmethod
    def listed(
        starts: Sequence[int], lengths: Sequence[int], longest: int, attention: VarlenAttention, device: torch.device
    ) -> Runs:
        """Runs of numbers that the host knows."""
        numbers = ([*starts, 0], lengths, range(len(lengths) + 1))
        first, count, places = (torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)
        return Runs(first, count, places, longest, attention)


Mask: TypeAlias = Tensor | Spans | Causal | Runs | None
"""The cells that new tokens may read: a tensor as in `masked_attention`, spans, runs, or None for causal attention."""

Select: TypeAlias = tuple[Tensor, Tensor] | None
"""Rows and places of some new tokens, two index tensors (k,); None for all."""


def has_flash(dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
    """Whether `flash_attention` computes this."""
    sized = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256
    # That of ROCm takes no lengths of runs.
    built = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    return device.type == "cuda" and sized and built and torch.cuda.get_device_capability(device) >= (8, 0)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
    """torch's own flash attention of variable lengths: neither mask nor padding is read, and no head is copied.

    Runs may lie anywhere and in any order; nobody checks that they lie in memory, nor `longest`.
    """
    found: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, runs.places, runs.starts, 1, runs.longest, 0.0, False, False,
        scale=scale, seqused_k=runs.lengths,
    )[0]  # fmt: skip
    return found


def gather_attention(query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
    """The same in plain torch, on any device and in any dtype: `longest` cells of each row are copied and masked.

    They end where the run ends, so that with the longest row's length as the bound its numbers are those of a mask.
    """
    starts = runs.starts[:-1, None]
    cells = starts + runs.lengths[:, None] + torch.arange(-runs.longest, 0, device=starts.device)
    own = cells >= starts
    keys, values = (each[cells.clamp(min=0)].transpose(1, 2) for each in (key, value))
    mask = prepare_mask(own[:, None, None], 1, query.dtype, key.shape[1])
    return attend(query.unsqueeze(2), keys, values, mask, scale).squeeze(2)


def prepare_mask(mask: Mask, new: int, dtype: torch.dtype, kv_heads: int) -> Mask:
    """A mask as all layers of a pass read it, since each of them would widen a boolean one, and build triangles.

    A tensor becomes what is added to scores, 0 where a cell may be read and else the least number: for one new token
    (rows, kv_heads, 1, columns), for several with the second size 1.
    """
    if mask is None and new > 1:
        return Causal()
    if not isinstance(mask, Tensor):
        return mask
    spread = mask.expand(-1, kv_heads if new == 1 else -1, -1, -1)
    return torch.zeros(spread.shape, dtype=dtype, device=mask.device).masked_fill_(
        spread.logical_not(), torch.finfo(dtype).min
    )


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
    """Scaled dot-product attention in the calling convention of transformers' AttentionInterface.

    query           (rows, heads, new, dim)
    key, value      (rows, kv_heads, columns, dim)
    attention_mask  (rows or 1, 1, new, columns), True = may be read; None = causal, the new tokens being those of
                    the last columns: each reads all columns up to its own
    returns         (rows, new, heads, dim)

    Raises ValueError for the extras that some networks ask of their attention and that this one does not do.
    """
    if softcap is not None or s_aux is not None or position_bias is not None:
        raise ValueError("this network needs soft-capped, sink or biased attention, which is not supported")
    mask = prepare_mask(attention_mask, query.shape[2], query.dtype, key.shape[1])
    return attend(query, key, value, mask, scaling).transpose(1, 2), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """Scaled dot-product attention; shapes as in `masked_attention`, the mask being one that was prepared. Where it is
    runs, key and value are (tokens, kv_heads, dim).

    returns  (rows, heads, new, dim)
    """
    if isinstance(mask, Spans):
        rows = zip(*(torch.split(each, 1) for each in (query, key, value)), mask.origins, strict=True)
        end = mask.end
        return torch.cat(
            [_attend(q, k[:, :, origin:end], v[:, :, origin:end], None, scale) for q, k, v, origin in rows]
        )
    if isinstance(mask, Causal):
        return _causal(query, key, value, mask, scale)
    if isinstance(mask, Runs):
        return mask.attention(query.squeeze(2), key, value, mask, scale).unsqueeze(2)
    return _attend(query, key, value, mask, scale)


def _causal(query: Tensor, key: Tensor, value: Tensor, causal: Causal, scale: float | None) -> Tensor:
    """Each block of queries over the columns up to its last one, the block's own under a triangle.

             0        begin     columns
    block 0  . . . . . t                '.' all may be read   't' the triangle
    block 1  . . . . . . . . . t
    """
    new = query.shape[2]
    size = new if query.is_cuda else QUERY_BLOCK  # a GPU wants few kernels, and its products depend on `new` anyway
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
    """Queries (rows, kv_heads * group, new, dim) are read as (rows, kv_heads, group * new, dim).

    CUDA's masked kernels do not share K heads, and would be given copies of K and V. A CPU's read K and V once for the
    group: five times as fast in bfloat16 without AMX (32 rows of 128 columns), with AMX a quarter slower.
    """
    rows, heads, new, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * new, dim)
    if mask is not None and new > 1:
        mask = torch.cat([mask] * group, dim=-2)
    out = F.scaled_dot_product_attention(folded, key, value, mask, scale=scale)
    return out.reshape(rows, heads, new, dim)


def _is_batch(key: Tensor) -> bool:
    rows, _, columns, _ = key.shape
    return multiplies_batches(key.dtype, key.device) and key.is_contiguous() and reads_whole_pitch(rows, columns)


def _multiply_batches(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Attention of one new token a row by products of batches of matrices, whose scores are rounded to the dtype.

    queries (rows * kv_heads, group, dim) @ keys (rows * kv_heads, dim, columns)
    scores  (rows * kv_heads, group, columns) @ values (rows * kv_heads, columns, dim)
    """
    rows, heads, _, dim = query.shape
    kv_heads, columns = key.shape[1:3]
    folded = query.reshape(rows * kv_heads, -1, dim)
    scale = 1 / math.sqrt(dim) if scale is None else scale
    added = mask.expand(rows, kv_heads, 1, columns).reshape(-1, 1, columns)
    scores = torch.baddbmm(added, folded, key.flatten(0, 1).transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value.flatten(0, 1)).view(rows, heads, 1, dim)


def register() -> str:
    """Make the function known to transformers; returns its name. Registering twice changes nothing."""
    AttentionInterface.register(ATTENTION, masked_attention)
    return ATTENTION
