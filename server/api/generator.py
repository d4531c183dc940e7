"""The parts of the scheduler that the handlers use: the dispatcher, and the prediction of an answer's length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from aiohttp import web

from engine.sampling.params import SamplingParams
from scheduler.dispatcher import Dispatcher
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import LengthDistribution, Prediction
from scheduler.request import Request

Revise: TypeAlias = Callable[[Request, float | None, LengthDistribution | None], None]
"""Takes a better prediction of a request's length, as the dispatcher does."""


class AnswerLengths(Protocol):
    """The part of server.lengths.lengths.Lengths that handlers use. Event loop only."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        """The length of an answer; None where none is predicted. Raises NoReplay where the client should know it."""
        ...

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        """Record a request that was submitted; `revise` is called with what becomes known of its length later."""
        ...


class UnknownLengths:
    """Lengths of a server that neither predicts nor records."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        return None

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        pass


DISPATCHER = web.AppKey("dispatcher", Dispatcher)
LENGTHS: web.AppKey[AnswerLengths] = web.AppKey("lengths")
