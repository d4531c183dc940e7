"""What the length predictor's process does: texts to features, features to distributions of lengths.

It owns the present forest and its replacement. It knows no process and no connection, see length_process.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scheduler.length.features import FloatMatrix, LengthQuery, assemble
from scheduler.length.forest import Examples, Forest, Growth
from scheduler.length.forest_file import ForestError, load
from scheduler.length.prediction import Estimate

if TYPE_CHECKING:
    from models.embedder import Embedder


NICENESS = 19
"""A forest that grows hardly slows down what serves, and still gets somewhere where all cores are busy; in an idle
class it might not."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process works with."""

    embedder: str
    """Name of the sentence embedder."""
    folder: Path
    """Where the catalog found it."""
    max_tokens: int
    """Tokens of a text that are read."""
    forest: Path
    """May be absent: then nothing is predicted yet, but features are made, from which the first forest grows."""
    growth: Growth = Growth()
    niceness: int = NICENESS
    """Of the process that grows forests, above the server's own."""
    device: str = "cpu"
    """That of the executors, as --device says."""


class Encoder(Protocol):
    """What is needed of models.embedder.Embedder."""

    def encode(self, texts: Sequence[str]) -> FloatMatrix: ...


@dataclass(frozen=True, slots=True)
class Swap:
    """Put the forest that is in the file now in place of the present one."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Tell what the present forest was grown from."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Embed these, for the length cache."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    estimates: tuple[Estimate, ...] = ()
    embeddings: FloatMatrix | None = None
    """Of texts, where these were the message."""
    examples: Examples | None = None
    """What the forest was grown from, where that was asked for and there is one."""
    error: str | None = None
    """Why there are no estimates."""
    warning: str | None = None
    """What else went wrong since the last reply."""


class LengthWorker:
    """What the predictor's process does with a message."""

    def __init__(self, embedder: Encoder, setup: Setup) -> None:
        self._embedder = embedder
        self._setup = setup
        self._loader = ThreadPoolExecutor(1, "forest")
        self._forest: Forest | None = None
        self._warning: str | None = None
        self._loading: Future[Forest] | None = None
        if setup.forest.exists():
            self._adopt(self._loader.submit(load_forest, setup))

    def answer(self, message: tuple[LengthQuery, ...] | Texts | Swap | Recall) -> Reply:
        """Never raises: what goes wrong is the reply."""
        if isinstance(message, Swap):
            # In a thread, since reading a large forest takes most of a second.
            self._loading = self._loader.submit(load_forest, self._setup)
            return self._reply()
        if self._loading is not None and self._loading.done():
            self._adopt(self._loading)
            self._loading = None
        if isinstance(message, Recall):
            return Reply(examples=self._forest.examples if self._forest else None)
        try:
            if isinstance(message, Texts):
                return Reply(embeddings=self._embedder.encode(message.texts))
            return self._reply(self._estimates(message))
        except Exception as error:
            return Reply(error=f"{type(error).__name__}: {error}")

    def _adopt(self, loading: Future[Forest]) -> None:
        try:
            self._forest = loading.result()
        except ForestError as error:
            self._warning = f"{error}; until then lengths are predicted without it"

    def _reply(self, estimates: tuple[Estimate, ...] = ()) -> Reply:
        warning, self._warning = self._warning, None
        return Reply(estimates, warning=warning)

    def _estimates(self, queries: Sequence[LengthQuery]) -> tuple[Estimate, ...]:
        if not queries:
            return ()
        features = embed(self._embedder, queries)
        distributions = self._forest.distributions(features) if self._forest else [None] * len(queries)
        rows = zip(features.tolist(), distributions, strict=True)
        return tuple(Estimate(tuple(row), distribution) for row, distribution in rows)


def embed(embedder: Encoder, queries: Sequence[LengthQuery]) -> FloatMatrix:
    """Instructions and user inputs in one call -> features (n, FEATURES)."""
    texts = [query.instruction for query in queries] + [query.user_input for query in queries]
    embeddings = embedder.encode(texts)
    lengths = np.array([query.user_input_length for query in queries], dtype=np.float32)
    return assemble(embeddings[: len(queries)], embeddings[len(queries) :], lengths)


def load_forest(setup: Setup) -> Forest:
    """The forest in the file, if it was grown for this embedder. Raises ForestError."""
    forest, about = load(setup.forest)
    if (about.embedder, about.max_tokens) != (setup.embedder, setup.max_tokens):
        raise ForestError(
            f"{setup.forest} was made for the embedder {about.embedder} with {about.max_tokens} tokens, not for "
            f"{setup.embedder} with {setup.max_tokens}: train it again with `lengthwise train`"
        )
    return forest


def load_embedder(folder: Path, max_tokens: int) -> Embedder:
    """Read it without the bars and warnings that its libraries print. Raises CatalogError."""
    import transformers

    from models.embedder import Embedder

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return Embedder.load(folder, max_tokens=max_tokens)
