"""The memory that a model takes once it is loaded, in numbers whose width is another's choice. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from models.catalog.checkpoint import count_values
from models.catalog.errors import CatalogError
from models.errors import translate_failures

Admit: TypeAlias = Callable[[int], object]
"""Called with the numbers in a model's weights before it is fetched or converted; raises to refuse it."""


@dataclass(frozen=True, slots=True)
class Need:
    """Numbers that a model keeps in memory."""

    weights: int
    kv: int = 0
    """K and V of one token over all layers; 0 for a model that keeps none."""
    context: int = 0
    """Tokens of its context."""

    def tell(self, width: int, slots: int, context: int | None) -> str:
        """The memory in words, for numbers of `width` bytes and slots of `context` tokens (None: the model's own)."""
        weights, tokens = f"weights {self.weights * width / 2**30:.1f} GiB", context or self.context
        kept = slots * tokens * self.kv * width / 2**30
        return f"{weights}, K and V of {slots} slots with {tokens:,} tokens each {kept:.1f} GiB" if kept else weights


def read_need(folder: Path) -> Need:
    """The need of a checkpoint, by its configuration and the headers of its files. Raises CatalogError.

    K and V count only where the configuration names its sizes as most do.
    """
    weights = count_values(folder)
    with translate_failures(lambda why: CatalogError(f"{folder}/config.json is damaged ({why}): download it again")):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _read_sizes(config, weights)


def _read_sizes(config: Mapping[str, Any], weights: int) -> Need:
    try:
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return Need(weights, 2 * config["num_hidden_layers"] * kv_heads * size, config["max_position_embeddings"])
    except (KeyError, ZeroDivisionError):
        return Need(weights)
