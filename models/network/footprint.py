"""The memory that a checkpoint takes once it is loaded, from its headers and its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from models.catalog.checkpoint import count_values
from models.network.kv_adapter import KvShape
from models.network.loader import choose_dtype, read_config, read_context_length, read_kv_shape


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one network on one device."""

    weight_bytes: int
    """Bytes of the weights as they are read; quantization makes them fewer afterwards."""
    kv: KvShape
    context_length: int
    """The model's context, in tokens."""


def read_footprint(folder: Path, dtype: str, device: torch.device) -> Footprint:
    """The footprint of a checkpoint with weights of a type, which may be `auto`. Raises LoadError and CatalogError."""
    chosen, config = choose_dtype(dtype, device), read_config(folder)
    kv = read_kv_shape(config, chosen, device)
    return Footprint(count_values(folder) * chosen.itemsize, kv, read_context_length(config))
