"""Runs any causal language model of transformers over a `KvStore`; the only file that knows its Cache API."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from models.network.attention import Mask, Select


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
    """Cells of a pass, by layer."""

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
        buffers = (buffer[:, :, :, self.read].unbind() for buffer in (self.keys, self.values))
        return tuple(zip(*buffers, strict=True))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._new[0][layer].copy_(keys)
        self._new[1][layer].copy_(values)
        return self._read[layer]


class StoreCache(Cache):
    """`past_key_values`; lengths are unsupported, as positions and masks are passed in."""

    def __init__(self, store: KvStore, rows: int, new: int) -> None:
        super().__init__(layers=[])
        self._pass = store.begin_pass(rows, new)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self._pass.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise NotImplementedError("this network counts cached tokens itself instead of using position_ids")

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        raise NotImplementedError("this network builds its own mask instead of using the 4-D mask it was given")


class ForeignNetwork(nn.Module):
    """One thread at a time."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network
        self._select: Select = None
        head: nn.Module = network.get_output_embeddings()  # type: ignore[no-untyped-call]
        head._forward_pre_hooks.clear()  # the original's hook
        head.register_forward_pre_hook(self._gather)

    @property
    def embeddings(self) -> Tensor:
        weight: Tensor = self.network.get_input_embeddings().weight  # type: ignore[assignment]
        return weight

    def _gather(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._select is None:
            return None
        rows, places = self._select
        return (inputs[0][rows, places].unsqueeze(1),)  # (k, 1, hidden)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: Select = None) -> Tensor:
        self._select = select
        try:
            output = self.network(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=StoreCache(store, *tokens.shape),
                use_cache=True,
            )
        finally:
            self._select = None  # direct calls
        logits: Tensor = output.logits.float()
        return logits[:, 0] if select is not None else logits

    def read(self, tokens: Tensor) -> Tensor:
        """(rows, new, vocab), without a cache."""
        logits: Tensor = self.network(input_ids=tokens, use_cache=False).logits
        return logits.float()

    def twin(self) -> ForeignNetwork:
        """Shares weights."""
        weights = {id(tensor): tensor for tensor in (*self.network.parameters(), *self.network.buffers())}
        return ForeignNetwork(copy.deepcopy(self.network, weights))
