"""Attention over borrowed K and V, registered with transformers under the name `lengthwise`.

It never copies K and V: with grouped queries, either the kernel shares a K head among its group of Q heads, or
the group is folded into the query axis. It knows no rows, only a boolean mask of what may be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION = "lengthwise"

QUERY_BLOCK = 64
"""Queries that read their columns in one kernel call where a prompt is read. Blocks begin where the pass begins: so how
many tokens a pass reads changes none of their numbers, as long as it begins at a multiple of this."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The columns that one new token of each row may read: all from the row's origin on.

    Each row is read in a call of its own: beside padding its sums over columns would be grouped otherwise.
    """

    origins: tuple[int, ...]


Mask: TypeAlias = Tensor | Spans | None
"""What new tokens may read: a tensor as in `masked_attention`, spans, or None where they read causally."""


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
    return attend(query, key, value, attention_mask, scaling).transpose(1, 2), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """Scaled dot-product attention; shapes as in `masked_attention`, a tensor being boolean or added to the scores.

    returns  (rows, heads, new, dim)
    """
    if isinstance(mask, Spans):
        rows = zip(*(torch.split(each, 1) for each in (query, key, value)), mask.origins, strict=True)
        return torch.cat([_attend(q, k[:, :, origin:], v[:, :, origin:], None, scale) for q, k, v, origin in rows])
    if mask is None and query.shape[2] > 1:
        return _causal(query, key, value, scale)
    return _attend(query, key, value, mask, scale)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
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
        mask = None if end == last - first else _triangle(last - first, end, query)
        blocks.append(_attend(query[:, :, first:last], key[:, :, :end], value[:, :, :end], mask, scale))
    return torch.cat(blocks, dim=2)


def _triangle(new: int, columns: int, query: Tensor) -> Tensor:
    """(new, columns): 0 where the new tokens, those of the last columns, may read, else minus infinity."""
    blocked = torch.full((new, columns), -torch.inf, dtype=query.dtype, device=query.device)
    return blocked.triu_(columns - new + 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    folds = mask is not None if query.is_cuda else query.shape[2] == 1 and not _has_amx()
    return (_folded if folds else _grouped)(query, key, value, mask, scale)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    causal = mask is None and query.shape[2] > 1
    groups = query.shape[1] != key.shape[1]
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


def register() -> str:
    """Make the function known to transformers; returns its name. Registering twice changes nothing."""
    AttentionInterface.register(ATTENTION, masked_attention)
    return ATTENTION
