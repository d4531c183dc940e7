"""Runs any causal language model of transformers over a `KvStore`; the only file that knows its modelling code, whose
import takes 2.4 s.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, Cache, PreTrainedModel

from models.catalog.checkpoint import LOCAL
from models.errors import LoadError
from models.network.attention import Mask, Select, masked_attention
from models.network.kv_store import KvStore

ATTENTION = "lengthwise"

Report = Mapping[str, Collection[object]]  # transformers' keys by problem


def read_network(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    loaded: tuple[PreTrainedModel, Report] = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
        folder, dtype=dtype, attn_implementation=register(), use_safetensors=True, output_loading_info=True, **LOCAL
    )
    network, report = loaded
    if lacking := [*report["missing_keys"], *report["mismatched_keys"]]:
        raise LoadError(
            f"{folder.name} is not a complete causal language model: {len(lacking)} of its weights are missing or of "
            f"another shape, {lacking[0]} among them. Fetch it again, or choose another."
        )
    nn.Module.to(network, device)
    nn.Module.eval(network).requires_grad_(False)
    return network


def register() -> str:
    """Idempotent; returns its name in transformers."""
    AttentionInterface.register(ATTENTION, masked_attention)
    return ATTENTION


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
            cache = StoreCache(store, *tokens.shape)
            output = self.network(
                input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
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
