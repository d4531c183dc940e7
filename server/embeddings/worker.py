"""The work of the process that embeds texts for clients: texts to token ids, token ids to embeddings.

It knows no process and no connection, see server/process/worker_process.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from server.process.worker_process import ProcessFailed, answer_all

Ids: TypeAlias = tuple[int, ...]
FloatMatrix: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingSetup:
    """The settings of the process."""

    model: str
    """The sentence embedder, as --embedding-model says."""
    device: str = "cpu"
    """The device of the executors, as --device says."""


@dataclass(frozen=True, slots=True)
class ReadInputs:
    """A message: split texts into tokens, and check them and what came as token ids."""

    inputs: tuple[str | Ids, ...]


@dataclass(frozen=True, slots=True)
class EmbedIds:
    """A message: embed token ids that were read before."""

    ids: tuple[Ids, ...]
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply: what the client has to change."""

    message: str
    place: int | None = None
    """The input that it is about; None where it is about all, or about `dimensions`."""
    code: str | None = None
    about_dimensions: bool = False


@dataclass(frozen=True, slots=True)
class InputIds:
    """A reply: the token ids of inputs."""

    ids: tuple[Ids, ...]


class Network(Protocol):
    """The part of models.embedder.Embedder that is needed here."""

    @property
    def max_tokens(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def dimensions(self) -> int: ...
    def tokenize(self, texts: Sequence[str]) -> list[list[int]]: ...
    def encode_ids(self, ids: Sequence[Sequence[int]], dimensions: int | None = None) -> FloatMatrix: ...


class EmbeddingWorker:
    """Answers messages by a sentence embedder; a Worker."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name

    def answer(self, message: ReadInputs | EmbedIds) -> InputIds | FloatMatrix | Refusal | ProcessFailed:
        """Never raises: what goes wrong is the reply."""
        try:
            return self._read(message.inputs) if isinstance(message, ReadInputs) else self._embed(message)
        except Exception as error:
            return ProcessFailed(f"{type(error).__name__}: {error}")

    def _read(self, inputs: tuple[str | Ids, ...]) -> InputIds | Refusal:
        texts = [one for one in inputs if isinstance(one, str)]
        split = iter(self._network.tokenize(texts) if texts else ())
        found = tuple(tuple(next(split)) if isinstance(one, str) else one for one in inputs)
        most, last = self._network.max_tokens, self._network.vocab_size - 1
        for place, ids in enumerate(found):
            if len(ids) > most:
                message = f"has {len(ids)} tokens, but {self._name} reads {most}; shorten it"
                return Refusal(message, place, "context_length_exceeded")
            if min(ids, default=0) < 0 or max(ids, default=0) > last:
                return Refusal(f"token ids of {self._name} go from 0 to {last}", place)
        return InputIds(found)

    def _embed(self, message: EmbedIds) -> FloatMatrix | Refusal:
        if (message.dimensions or 0) > self._network.dimensions:
            return Refusal(f"{self._name} has {self._network.dimensions}; ask for fewer", about_dimensions=True)
        return self._network.encode_ids(message.ids, message.dimensions)


def embed_texts(connection: Connection[Any, Any], setup: EmbeddingSetup) -> None:
    """The work of the process."""
    answer_all(connection, partial(_load, setup))


def _load(setup: EmbeddingSetup) -> EmbeddingWorker:
    from models.catalog.catalog import Catalog  # with torch, in this process only
    from server.composition.devices import run_beside_executors
    from server.lengths.worker import load_embedder

    run_beside_executors(setup.device)
    return EmbeddingWorker(load_embedder(Catalog().resolve(setup.model), WHOLE), Path(setup.model).name)


WHOLE = 2**31
"""Tokens of a text that are read at most: the network's own limit is less."""
