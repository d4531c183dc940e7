"""The parts of the server that its HTTP application works with, put together by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from scheduler.dispatcher import Dispatcher
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import Conditions
from server.api.embeddings import EMBEDDER
from server.api.health import LIFE, Life
from server.api.limits import LIMITS, PENDING, Limits, PendingCalls
from server.api.operation import Operation
from server.api.operations import OPERATIONS
from server.api.output.sse import TICKER, Ticker
from server.api.register import REGISTER, Register
from server.api.responses import STORE, ResponseStore
from server.api.served_model import DISPATCHER, LENGTHS, MODEL, AnswerLengths, ServedModel, UnknownLengths
from server.batches.asker import BATCHES, ModelAsker
from server.batches.batches import Batches
from server.dashboard.feed import FEED, Feed
from server.embeddings import TextEmbedder
from server.http.page import NAME
from server.observe.metrics import METRICS, Metrics


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FilesPlace:
    """A folder for files and batches, which no other server has; its capacity in bytes."""

    folder: Path
    capacity: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The conditions under which executors run, and the prices known for them at the start; None where none are."""

    conditions: Conditions
    prices: Bilinear | None


@dataclass(frozen=True, slots=True)
class Service:
    """A server whose parts are loaded, ready to answer."""

    dispatcher: Dispatcher
    served_model: ServedModel | None
    """The model that this process computes; None where others do."""
    title: str = ""
    """The name of what is served, where that is no model of this process."""
    operations: Sequence[Operation] = OPERATIONS
    """Its paths."""
    parts: Mapping[web.AppKey[Any], Any] = field(default_factory=dict)
    """What handlers need besides, under their keys."""
    executors: int = 1
    limits: Limits = field(default_factory=Limits)
    lengths: AnswerLengths = field(default_factory=UnknownLengths)
    responsive: Callable[[], bool] = _always
    """Whether executors that have work go on with it."""
    metrics: Metrics | None = None
    """Counts for /metrics."""
    feed: Feed | None = None
    """Events for the dashboard."""
    embedder: TextEmbedder | None = None
    """Embeds texts for clients; None where nothing does."""
    files: FilesPlace | None = None
    """Where files and batches are kept; None for nowhere."""
    machine: Machine | None = None
    """The machine that computes, which the server describes at its start."""

    @property
    def name(self) -> str:
        """The name of what is served."""
        return self.title if self.served_model is None else self.served_model.id

    @property
    def model(self) -> ServedModel:
        """The model, of a service that computes one."""
        assert self.served_model is not None
        return self.served_model

    def _slots(self) -> int:
        """Rows that the executors can hold."""
        return sum(worker.info.max_rows for worker in self.dispatcher.workers if worker.serves)

    def hand_to(self, app: web.Application) -> None:
        """Give each part to the handlers that need it, under its own key."""
        app[DISPATCHER] = self.dispatcher
        app[NAME] = self.name
        if self.served_model is not None:
            app[MODEL] = self.served_model
        for key, part in self.parts.items():
            app[key] = part
        app[LIMITS] = self.limits
        app[LENGTHS] = self.lengths
        app[STORE] = ResponseStore(self.limits.stored_response_bytes)
        app[LIFE] = Life(self.responsive)
        app[PENDING] = PendingCalls()
        app[TICKER] = Ticker()
        app[REGISTER] = Register(self.dispatcher)
        if self.embedder is not None:
            app[EMBEDDER] = self.embedder
        if self.files is not None:
            app[BATCHES] = Batches(
                self.files.folder, self.files.capacity, self.limits.max_body_bytes, ModelAsker(app), self._slots
            )
        if self.metrics is not None:
            app[METRICS] = self.metrics
        if self.feed is not None:
            app[FEED] = self.feed
