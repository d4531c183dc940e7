"""The only file that knows transformers' Cache API: lets a network use memory for K and V that is not its own.

It does not know where the memory lies or which rows are in it; a `KvStore` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of one token's K and V."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Δ: bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KvStore(Protocol):
    """Memory for K and V, written and read layer by layer during one forward pass."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new K and V, each (rows, kv_heads, new tokens, head_dim), after RoPE.

        Returns what attention shall read: K and V, each (rows, kv_heads, columns, head_dim), views where possible.
        """
        ...


class PassingStore:
    """A KvStore that keeps nothing: attention reads what was just computed, for texts that are read in one pass."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


class StoreCache(Cache):
    """Presents a KvStore to a transformers network as its `past_key_values`.

    Positions and masks are always passed in explicitly, so the lengths that the base class would report are
    never asked for; asking is a bug in a network that this server does not support.
    """

    def __init__(self, store: KvStore) -> None:
        super().__init__(layers=[])
        self._store = store

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self._store.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise NotImplementedError("this network counts cached tokens itself instead of using position_ids")

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        raise NotImplementedError("this network builds its own mask instead of using the 4-D mask it was given")
