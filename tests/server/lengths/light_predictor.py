"""The predictor's process without a network: what it answers to can be foreseen, and it starts at once."""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.catalog.catalog import default_cache
from scheduler.length.forest import Examples
from server.lengths.process import ForestWorker, Setup


class FakeEmbedder:
    """Every value of a text's embedding is its number of letters."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        return np.array([[len(text)] * 16 for text in texts], dtype=np.float32)


class NotingEmbedder(FakeEmbedder):
    """Notes how many texts it was given at a time, a line each, in the cache folder."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with (default_cache() / "noted").open("a") as noted:
            noted.write(f"{len(texts)}\n")
        return super().encode(texts)


def note(setup: Setup) -> ForestWorker:
    """Answer as `predict` does, and note what was asked, for tests that want to know."""
    return ForestWorker(NotingEmbedder(), setup)


def predict(setup: Setup) -> ForestWorker:
    """Runs in a process of its own."""
    return ForestWorker(FakeEmbedder(), setup)


class StumblingEmbedder(FakeEmbedder):
    """Fails at each text."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ZeroDivisionError("division by zero")


def stumble(setup: Setup) -> ForestWorker:
    """A process whose embedder fails."""
    return ForestWorker(StumblingEmbedder(), setup)


def fail(setup: Setup) -> ForestWorker:
    """A process that cannot load its embedder."""
    raise ValueError(f"{setup.folder} is empty")


def divide(examples: Examples, by: int) -> tuple[int, float]:
    """Work of a process, which need not import torch for it: its niceness, and what it makes of its arguments."""
    return os.nice(0), float(examples.lengths.sum()) / by
