"""The embedder's process without a network: letters are tokens, and an embedding can be foreseen."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from server.embeddings import EmbeddingWorker, FloatMatrix


class FakeNetwork:
    """Its tokens are letters, of which it reads 8; an embedding is the first token, the last one, and their count."""

    max_tokens, vocab_size, dimensions = 8, 128, 3

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    def encode_ids(self, ids: Sequence[Sequence[int]], dimensions: int | None = None) -> FloatMatrix:
        if any(99 in one for one in ids):
            raise ZeroDivisionError("a letter that it stumbles over")
        return np.array([(one[0], one[-1], len(one)) for one in ids], dtype=np.float32)[:, :dimensions]


def embed(model: str, device: str) -> EmbeddingWorker:
    """Runs in a process of its own."""
    return EmbeddingWorker(cast(Any, FakeNetwork()), model)


def fail(model: str, device: str) -> EmbeddingWorker:
    """A process that cannot load its network."""
    raise ValueError(f"{model} is no sentence embedder")
