"""Under which conditions a loaded model runs here: the key by which its profile is kept and found."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from models.network.loader import LoadedModel
from scheduler.serving_time.profile_file import Conditions
from server.cli.config import ServeConfig
from server.process.devices import threads


def conditions_of(config: ServeConfig, model: LoadedModel) -> Conditions:
    """What the timings of one executor with this model depend on."""
    path = Path(config.model).expanduser()
    return Conditions(
        model=str(path.resolve()) if path.exists() else config.model,
        dtype=str(model.kv.dtype).removeprefix("torch."),
        quantization=str(model.quantization),
        device=device_name(model.device),
        threads=threads(config) if model.device.type == "cpu" else 0,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def device_name(device: torch.device) -> str:
    """What the processor calls itself, without its number."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
