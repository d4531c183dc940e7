"""The parts of the scheduler that the handlers use: the dispatcher, and the prediction of an answer's length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from aiohttp import web

from engine.messages import SamplingParams
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.request import Request

Revise: TypeAlias = Callable[[Request, float | None, LengthDistribution | None], None]
"""Takes a better prediction of a request's length, as a Generator does."""


class Generator(Protocol):
    """The part of scheduler.dispatcher.Dispatcher that handlers use. Event loop only."""

    @property
    def alive(self) -> bool: ...
    @property
    def requests_queued(self) -> int: ...
    @property
    def requests_waiting(self) -> int: ...
    @property
    def requests_running(self) -> int: ...
    @property
    def tokens_waiting(self) -> int: ...
    @property
    def free_slots(self) -> int: ...
    def now(self) -> float: ...
    def place(self, request: Request) -> int | None: ...
    def expected_wait(self, request: Request) -> float | None: ...
    def retry_after(self) -> float: ...
    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        predicted_length: float | None = None,
        distribution: LengthDistribution | None = None,
        arrival: float | None = None,
    ) -> Request: ...
    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None: ...
    def cancel(self, request: Request) -> None: ...
    def drain(self) -> Awaitable[None]: ...
    def death(self) -> Awaitable[None]: ...
    def abort_all(self, message: str) -> None: ...


class AnswerLengths(Protocol):
    """The part of server.lengths.lengths.Lengths that handlers use. Event loop only."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams, *, queues: bool = True) -> Prediction | None:
        """The length of an answer, None where none is predicted; raises NoReplay where the client should have said it.

        `queues` tells whether the request will have to queue: otherwise a slow prediction is not worth waiting for.
        """
        ...

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        """Record a request that was submitted; `revise` is called with what becomes known of its length later."""
        ...


class UnknownLengths:
    """Lengths of a server that neither predicts nor records."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams, *, queues: bool = True) -> Prediction | None:
        return None

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        pass


DISPATCHER: web.AppKey[Generator] = web.AppKey("dispatcher")
LENGTHS: web.AppKey[AnswerLengths] = web.AppKey("lengths")
