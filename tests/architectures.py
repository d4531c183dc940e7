"""Tiny checkpoints of other architectures than llama, with random weights and no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: Mapping[str, Any] = {**SIZES, "num_key_value_heads": 2}


def build(folder: Path, kind: str, sizes: Mapping[str, Any]) -> Path:
    """Write a checkpoint of `kind`, whose configuration class is `{kind}Config`; returns the folder."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    network = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    network.save_pretrained(folder)
    return folder
