"""The work of the length predictor's process: texts to features, and features to distributions of lengths by a forest,
or texts to lengths by SSJF's proxy.

It knows no process and no connection, see process.py. With `PredictorProcess(setup, predict_by_proxy)`,
`setup.forest` is the proxy's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scheduler.length.features import FloatMatrix, LengthQuery, assemble
from scheduler.length.forest import Examples, Forest, ForestError, Growth, load, read
from scheduler.length.prediction import Estimate, LengthDistribution, Source
from server.process.worker_process import answer_all

if TYPE_CHECKING:
    from models.embedder import Embedder
if TYPE_CHECKING:
    from models.proxy.network import Proxy

NICENESS = 19
"""A forest that grows hardly slows down what serves, and still gets somewhere where all cores are busy; in an idle
class it might not."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of the process."""

    embedder: str
    """Name of the sentence embedder."""
    folder: Path
    """The embedder's folder."""
    max_tokens: int
    """Tokens of a text that are read."""
    forest: Path
    """The forest's file. Where it is absent nothing is predicted yet, but features are made for the first forest."""
    growth: Growth = Growth()
    niceness: int = NICENESS
    """Niceness of the process that grows forests, above the server's own."""
    device: str = "cpu"
    """The device of the executors, as --device says."""


class Encoder(Protocol):
    """The part of models.embedder.Embedder that is needed here."""

    def encode(self, texts: Sequence[str]) -> FloatMatrix: ...


@dataclass(frozen=True, slots=True, eq=False)
class TakeForest:
    """A message: take this forest in place of the present one."""

    forest: Forest


@dataclass(frozen=True, slots=True)
class EmbedTexts:
    """A message: embed these texts, for the length cache."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    estimates: tuple[Estimate, ...] = ()
    embeddings: FloatMatrix | None = None
    """Embeddings, where texts were the message."""
    error: str | None = None
    """Why there are no estimates."""
    warning: str | None = None
    """Another thing that went wrong since the last reply."""


class LengthWorker:
    """Answers messages by an embedder and a forest; a Worker."""

    def __init__(self, embedder: Encoder, setup: Setup) -> None:
        self._embedder = embedder
        self._setup = setup
        self._forest: Forest | None = None
        self._warning: str | None = None
        if setup.forest.exists():
            try:
                self._forest = load_forest(setup)
            except ForestError as error:
                self._warning = f"{error}; until then lengths are predicted without it"

    def answer(self, message: tuple[LengthQuery, ...] | EmbedTexts | TakeForest) -> Reply:
        """Never raises: what goes wrong is the reply."""
        if isinstance(message, TakeForest):
            self._forest = message.forest
            return self._reply()
        try:
            if isinstance(message, EmbedTexts):
                return Reply(embeddings=self._embedder.encode(message.texts))
            return self._reply(self._estimates(message))
        except Exception as error:
            return Reply(error=f"{type(error).__name__}: {error}")

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
    read_examples(setup)
    return load(setup.forest)[0]


def read_examples(setup: Setup) -> Examples:
    """The examples of the forest in the file, if they were made by this embedder. Raises ForestError."""
    examples, about = read(setup.forest)
    if (about.embedder, about.max_tokens) != (setup.embedder, setup.max_tokens):
        raise ForestError(
            f"{setup.forest} was made for the embedder {about.embedder} with {about.max_tokens} tokens, not for "
            f"{setup.embedder} with {setup.max_tokens}: train it again with `lengthwise train`"
        )
    return examples


def load_embedder(folder: Path, max_tokens: int) -> Embedder:
    """Read it without the bars and warnings that its libraries print. Raises CatalogError."""
    import transformers

    from models.embedder import Embedder

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return Embedder.load(folder, max_tokens=max_tokens)


class ProxyWorker:
    """Answers messages by a proxy; a Worker."""

    def __init__(self, proxy: Proxy, embedder: Callable[[], Encoder]) -> None:
        """`embedder` is called when the first texts are to be embedded, since there may be no cache."""
        self._proxy = proxy
        self._load_embedder = embedder
        self._embedder: Encoder | None = None

    def answer(self, message: tuple[LengthQuery, ...] | EmbedTexts) -> Reply:
        """Never raises: what goes wrong is the reply."""
        try:
            if isinstance(message, EmbedTexts):
                self._embedder = self._embedder or self._load_embedder()
                return Reply(embeddings=self._embedder.encode(message.texts))
            return Reply(self._estimates(message))
        except Exception as error:
            return Reply(error=f"{type(error).__name__}: {error}")

    def _estimates(self, queries: tuple[LengthQuery, ...]) -> tuple[Estimate, ...]:
        if not queries:
            return ()
        lengths = self._proxy.predict([query.conversation for query in queries]).tolist()
        return tuple(Estimate((), LengthDistribution.certain(length), Source.PROXY) for length in lengths)


def predict_by_proxy(connection: Connection[Any, Any], setup: Setup) -> None:
    """Answer what comes over the connection with the proxy's predictions, in a process of its own."""
    answer_all(connection, partial(_worker, setup))


def _worker(setup: Setup) -> ProxyWorker:
    from models.proxy.network import load  # with torch, in this process only
    from server.composition.devices import run_beside_executors

    run_beside_executors(setup.device)
    return ProxyWorker(load(setup.forest).pack(), partial(load_embedder, setup.folder, setup.max_tokens))
