"""From a configuration to the model, once for each executor, and its text."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.measure.probe import probe
from models.catalog.catalog import Catalog
from models.network.loader import LoadedModel, LoadError, load
from models.text import Text
from server.cli.config import ServeConfig
from server.process.devices import cuda_devices, hush_transformers, quantization, threads


def load_models(config: ServeConfig) -> tuple[tuple[LoadedModel, ...], Text]:
    """One network for each executor: on CUDA a device each, on a CPU the same weights for all.

    Fetches what is not there, and probes what it loaded. Raises CatalogError, LoadError and TextError with the remedy.
    """
    hush_transformers()
    folder = Catalog().resolve(config.model)
    text = Text.load(folder, chat_template=_chat_template(config))
    text.warm_up()
    models = _networks(config, folder)
    probe(models[0], text)
    return models, text


def first_network(config: ServeConfig, folder: Path) -> LoadedModel:
    """That of the first executor. Raises LoadError."""
    device, *_ = [*cuda_devices(config), "cpu"]
    if device == "cpu":
        torch.set_num_threads(threads(config))
    return _network(config, folder, device)


def _networks(config: ServeConfig, folder: Path) -> tuple[LoadedModel, ...]:
    first, devices = first_network(config, folder), cuda_devices(config)
    if devices:
        return (first, *(_network(config, folder, device) for device in devices[1:]))
    return (first, *(first.twin() for _ in range(max(1, config.executors) - 1)))


def _network(config: ServeConfig, folder: Path, device: str) -> LoadedModel:
    return load(folder, dtype=config.dtype, device=device, quantization=quantization(config))


def _chat_template(config: ServeConfig) -> str | None:
    if config.chat_template is None:
        return None
    try:
        return config.chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"--chat-template {config.chat_template} cannot be read: {error}") from error
