"""What a checkpoint's config says: dtype, sizes, context, and the shape of its KV cache."""

import json
import logging
import math
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig

from models.catalog.checkpoint import LOCAL
from models.errors import LoadError, translate_failures
from models.network.kv_store import KvShape
from models.network.packing import computes_bfloat16

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


COUNTS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = (*COUNTS, "hidden_size", "vocab_size", "max_position_embeddings")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" or computes_bfloat16() else torch.float32
    if name not in DTYPES:
        raise LoadError(f"unknown dtype '{name}': choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def read_config(folder: Path) -> PreTrainedConfig:
    """The text part; raises LoadError."""
    told = f"{folder.name}: config.json is not that of a known model"
    with translate_failures(lambda why: LoadError(f"{told}: {why}. Copy that of the original model there")):
        if "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
            raise LoadError(
                f"{folder.name} asks to run Python code of its own ('auto_map' in config.json), which this server "
                "never does. Choose a model whose architecture is part of the transformers library."
            )
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL)
        text = config.get_text_config(decoder=True)
        _require_sane(text)
    return text


def _require_sane(config: PreTrainedConfig) -> None:
    for name in SIZES:
        size = getattr(config, name, None)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} is {size}, which must be a whole number above 0")
    for name, value in config.to_dict().items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is no finite number")


def read_context_length(config: PreTrainedConfig) -> int:
    """Tokens, within a sliding window, where sliding and full attention agree."""
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    foreign = layer_types - {"full_attention", "sliding_attention"}
    if foreign:
        raise LoadError(f"layers of type {', '.join(sorted(foreign))} keep a state that is no KV cache: not supported")
    context = int(getattr(config, "max_position_embeddings", None) or 2048)
    window = getattr(config, "sliding_window", None)
    if window and window < context and ("sliding_attention" in layer_types or not getattr(config, "layer_types", None)):
        log.warning("context limited to the sliding window of %d tokens (the model has %d)", window, context)
        context = int(window)
    rope = getattr(config, "rope_parameters", None) or {}
    # Beyond it longrope rotates the whole batch differently, so rows would depend on neighbours.
    original = int(rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else context
    if original < context:
        log.warning(
            "context limited to %d tokens, where longrope changes its rotation (the model has %d)", original, context
        )
        context = original
    return context


def read_kv_shape(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> KvShape:
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return KvShape(config.num_hidden_layers, kv_heads, head_dim, dtype, device)
