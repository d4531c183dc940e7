"""The work of the length predictor's process with SSJF's proxy: texts to lengths, and to embeddings for the cache.

Started with `PredictorProcess(setup, predict_by_proxy)`, where `setup.forest` is the proxy's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Estimate, LengthDistribution, Source
from server.lengths.worker import EmbedTexts, Encoder, Reply, Setup, load_embedder
from server.process.worker_process import answer_all

if TYPE_CHECKING:
    from models.proxy.network import Proxy


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
