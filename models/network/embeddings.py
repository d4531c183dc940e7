"""Token embeddings of a loaded network, as plain arrays for what knows no torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from models.network.loader import LoadedModel

ROWS = 8192
"""Embeddings that are copied at a time: 134 MB at 4,096 numbers each."""


def token_embeddings(model: LoadedModel) -> Iterator[NDArray[np.float32]]:
    """The embedding of each token, (vocabulary, hidden), in parts of ROWS tokens by id.

    Quantization leaves them as they are.
    """
    embeddings = model.network.embeddings.detach()
    for first in range(0, len(embeddings), ROWS):
        yield embeddings[first : first + ROWS].to("cpu", torch.float32).numpy()
