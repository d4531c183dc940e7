"""Where networks write K and V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Δ: all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KvPass(Protocol):
    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store K and V, each (rows, kv_heads, new, head_dim), after RoPE; returns those to attend, each (rows,
        kv_heads, columns, head_dim).
        """


class KvStore(Protocol):
    def begin_pass(self, rows: int, new: int) -> KvPass:
        """`new` tokens of each of `rows`."""


class PassingStore:
    """Keeps nothing."""

    def begin_pass(self, rows: int, new: int) -> PassingStore:
        return self

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


class KvCells:
    """Over (layers, rows, kv_heads, columns, head_dim)."""

    def __init__(
        self, keys: Tensor, values: Tensor, new: slice, read: slice, counts: Sequence[int] | None = None
    ) -> None:
        """Writes columns `new`, reads `read`; `counts`: new tokens without padding."""
        self.keys, self.values, self.new, self.read, self.counts = keys, values, new, read, counts

    @cached_property
    def _new(self) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(buffer[:, :, :, self.new].unbind() for buffer in (self.keys, self.values))

    @cached_property
    def _read(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return tuple(zip(*(buffer[:, :, :, self.read].unbind() for buffer in (self.keys, self.values)), strict=True))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._new[0][layer].copy_(keys)
        self._new[1][layer].copy_(values)
        return self._read[layer]
