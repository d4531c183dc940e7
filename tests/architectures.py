"""Tiny checkpoints of other architectures than llama, with random weights and no tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES: Mapping[str, Any] = {
    **{"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 128, "initializer_range": 0.4, "bos_token_id": 1, "eos_token_id": 2},
    "pad_token_id": 0,
}
GROUPED: Mapping[str, Any] = {**SIZES, "num_key_value_heads": 2}
GPT2: Mapping[str, Any] = {
    "vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """An architecture that is served, in one of its variants."""

    kind: str
    sizes: Mapping[str, Any]
    own: bool
    """Whether it runs on this server's own forward pass."""
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.variant}" if self.variant else self.kind


def _rope(kind: str, **parameters: Any) -> Mapping[str, Any]:
    return {**GROUPED, "rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **parameters}}


_LONGROPE = {"short_factor": [1.5] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 64}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
_BIASED = {**GROUPED, "attention_bias": True, "mlp_bias": True}
_MULTIPLIERS = {
    "attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.3, "embedding_multiplier": 5.0
}  # fmt: skip

SERVED = (
    Served("Llama", GROUPED, True),
    Served("Llama", _BIASED, True, "biases"),
    Served("Llama", {**GROUPED, "tie_word_embeddings": True}, True, "tied head"),
    Served("Llama", {**GROUPED, "hidden_act": "gelu_pytorch_tanh"}, True, "GELU"),
    Served("Llama", _rope("linear", factor=2.0), True, "linear rotation"),
    Served("Llama", _rope("dynamic", factor=2.0), True, "dynamic rotation"),
    Served("Llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32), True, "YaRN"),
    Served("Llama", _rope("llama3", **_LLAMA3), True, "llama3 rotation"),
    Served("Mistral", {**GROUPED, "head_dim": 16, "sliding_window": 64}, True, "sliding window"),
    Served("Qwen2", GROUPED, True),
    Served("Qwen3", {**GROUPED, "head_dim": 16}, True),
    Served("SmolLM3", {**GROUPED, "no_rope_layers": [1, 0]}, True, "a layer without rotation"),
    Served("Granite", {**GROUPED, **_MULTIPLIERS}, True),
    Served("Phi3", _rope("default"), True),
    Served("Phi3", _rope("longrope", **_LONGROPE), True, "longrope"),
    Served("Phi3", _rope("default", partial_rotary_factor=0.5), True, "partial rotation"),
    Served("Cohere", GROUPED, False),
    Served("Ernie4_5", {**GROUPED, "head_dim": 8}, False),
    Served("Gemma", {**GROUPED, "head_dim": 8}, False),
    Served("Gemma3Text", {**GROUPED, "head_dim": 8, "sliding_window": 64}, False),
    Served("Glm4", {**GROUPED, "head_dim": 8}, False),
    Served("GPT2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, False),
    Served("GPTNeoX", SIZES, False),
    Served("Mixtral", {**GROUPED, "num_local_experts": 4}, False),
    Served("Olmo2", GROUPED, False),
    Served("Phi", GROUPED, False),
    Served("StableLm", GROUPED, False),
    Served("Starcoder2", GROUPED, False),
)


def passes_table() -> str:
    """The architectures that are served and the pass that each runs on, as the documents show it."""
    passes = (("own pass", True), ("transformers", False))
    rows = [f"| {name} | {'; '.join(str(one) for one in SERVED if one.own == own)} |" for name, own in passes]
    return "\n".join(["| runs on | architectures |", "|---|---|", *rows]) + "\n"


def build(folder: Path, kind: str, sizes: Mapping[str, Any]) -> Path:
    """Write a checkpoint of `kind`, whose configuration class is `{kind}Config`; returns the folder."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    network = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    network.save_pretrained(folder)
    return folder


def plain(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The checkpoint as transformers alone runs it."""
    network: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    torch.nn.Module.eval(network).requires_grad_(False)
    return network
