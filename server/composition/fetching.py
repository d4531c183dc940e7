"""The served model, brought into the cache unless it is there. Imports torch only for one that is not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.catalog.catalog import Catalog
from server.cli.config import ServeConfig


def fetch_model(config: ServeConfig) -> Path:
    """The folder of the model, fetched or converted if need be. Raises CatalogError, and, before that is begun,
    LoadError where the device has not the memory for the weights."""
    return Catalog().resolve(config.model, partial(_require_memory, config))


def _require_memory(config: ServeConfig, weights: int) -> None:
    import torch

    from models.network.loader import choose_dtype
    from server.composition.devices import cuda_devices, require_memory

    device = torch.device(next(iter(cuda_devices(config)), "cpu"))
    require_memory(weights, choose_dtype(config.dtype, device), device, config.model)
