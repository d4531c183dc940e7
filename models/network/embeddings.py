"""Token embeddings as arrays."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from models.catalog.checkpoint import weight_files
from models.errors import LoadError
from models.network.loader import LoadedModel
from models.network.model_config import read_config

ROWS = 8192  # 134 MB at 4,096 numbers each


def token_embeddings(model: LoadedModel) -> Iterator[NDArray[np.float32]]:
    """(vocabulary, hidden) in parts of ROWS; never quantized."""
    embeddings = model.network.embeddings.detach()
    for first in range(0, len(embeddings), ROWS):
        yield embeddings[first : first + ROWS].to("cpu", torch.float32).numpy()


def read_token_embeddings(folder: Path) -> Iterator[NDArray[np.float32]]:
    """(vocabulary, hidden) in parts of ROWS. Raises LoadError."""
    from transformers import AutoModelForCausalLM  # its modelling code: 2.4 s

    with torch.device("meta"):
        config = read_config(folder)
        network = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    weight = network.get_input_embeddings().weight
    name = next(name for name, parameter in network.named_parameters() if parameter is weight)
    names = {name, name.removeprefix(f"{network.base_model_prefix}.")}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in names & set(file.keys()):
                found = file.get_slice(name)
                for first in range(0, found.get_shape()[0], ROWS):
                    yield found[first : first + ROWS].to(torch.float32).numpy()
                return
    told = " or ".join(sorted(names))
    raise LoadError(f"{folder.name} has no token embeddings: none of its weights is called {told}")
