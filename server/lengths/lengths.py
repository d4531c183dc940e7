"""Predicted lengths of answers, and what is learned when they end: one object for handlers and dispatcher.

It knows neither how lengths are predicted nor who learns from them; predictors.py puts that together.

The kinds of length predictors, and which of them the settings ask for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from models.catalog.catalog import Catalog, CatalogError, default_cache
from models.errors import UserError
from models.proxy.store import read_manifest
from scheduler.journal.writer import Journal
from scheduler.length.cache import CAPACITY, CacheCounts, LengthCache
from scheduler.length.features import LengthQuery
from scheduler.length.late import LateEstimates
from scheduler.length.learning import Learning, Lesson
from scheduler.length.microbatch import MicroBatcher
from scheduler.length.online import OnlineForest
from scheduler.length.oracle import oracle
from scheduler.length.prediction import Estimate, Prediction, prediction_of
from scheduler.plan import Assignment
from scheduler.request import Request
from scheduler.strategy import STRATEGIES, Length
from server.api.generator import Revise
from server.cli.config import ServeConfig
from server.composition.cache_paths import forest_path, proxy_path
from server.lengths.process import Work
from server.lengths.proxy_worker import predict_by_proxy
from server.lengths.records import Records

Predict: TypeAlias = Callable[[LengthQuery, SamplingParams], Awaitable[Prediction | None]]
"""Predicts the length of an answer."""


async def predict_nothing(query: LengthQuery, sampling: SamplingParams) -> None:
    """Predict no length, for strategies that do not ask."""


async def true_length(query: LengthQuery, sampling: SamplingParams) -> Prediction:
    """Tell the length that a request replays, for oracle strategies. Raises NoReplay."""
    return oracle(sampling)


@dataclass(frozen=True, slots=True)
class PredictorParts:
    """The parts that predict and learn, for metrics about them; None for what is not there."""

    front: MicroBatcher | None = None
    learning: Learning | OnlineForest | None = None
    cache: LengthCache | None = None
    late: LateEstimates = field(default_factory=LateEstimates)

    @property
    def lessons(self) -> Sequence[Lesson]:
        """The error of predictions over time, oldest first (Magnus, figure 14)."""
        return () if self.learning is None else self.learning.lessons

    @property
    def cached(self) -> CacheCounts | None:
        """The counts of the length cache; None where there is none."""
        return None if self.cache is None else self.cache.counts


class Lengths:
    """Predicts for the handlers, and follows requests and batches for the dispatcher. Event loop only."""

    def __init__(self, predict: Predict, records: Records, learned: PredictorParts | None = None) -> None:
        self.learned = learned or PredictorParts()
        self._predict = predict
        self._records = records

    @property
    def journal(self) -> Journal | None:
        """Where requests and batches are recorded; None for nowhere."""
        return self._records.journal

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        return await self._predict(query, sampling)

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        self._records.note(request, query, prediction)
        if prediction is not None and prediction.late is not None and not request.state.is_final:
            self.learned.late.expect(request, prediction.late, partial(self._revised, request, query, revise))

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        self._records.on_end(request, reason, now)
        self.learned.late.forget(request)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        self._records.on_finish(assignment, now)

    def _revised(self, request: Request, query: LengthQuery, revise: Revise, estimate: Estimate) -> bool:
        """Take over a prediction that came after its request had gone on with a guess; False when it says nothing."""
        prediction = prediction_of(query, estimate)
        if prediction is None:
            return False
        self._records.revise(request, prediction)
        revise(request, prediction.length, prediction.distribution)
        return True


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A kind of predictor that works in a process."""

    path: Callable[[Path, str], Path]
    """(cache folder, served model) -> the file or folder of what was trained."""
    work: Work | None
    """The work of the process; None for that of the forest."""
    learns: bool
    """Whether it is trained while it serves."""
    cache_size: int
    """Prompts in the length cache by default. A look-up embeds texts, which is what the forest does anyway."""


KINDS: Mapping[Length, PredictorKind] = MappingProxyType(
    {
        Length.FOREST: PredictorKind(forest_path, None, learns=True, cache_size=0),
        Length.PROXY: PredictorKind(proxy_path, predict_by_proxy, learns=False, cache_size=CAPACITY),
    }
)

IN_PROCESS: Mapping[Length, Predict] = MappingProxyType({Length.NONE: predict_nothing, Length.ORACLE: true_length})
"""Predictions that need no process."""

IN_MODEL = frozenset({Length.OWN})
"""Predictions from what the served model makes of a prompt."""


def choose_predictor(config: ServeConfig) -> Length:
    """The kind of prediction that the settings ask for. Raises UserError where it cannot work with them."""
    length = Length(config.length_predictor or STRATEGIES[config.strategy].length)
    if length is Length.ORACLE and not config.allow_replay:
        raise UserError("an oracle needs requests that say how long their answers become: add --allow-replay")
    if config.length_cache_size and length not in KINDS:
        raise UserError(f"--length-cache-size is for --length-predictor {' and '.join(KINDS)}, not {length}")
    return length


def fetch_predictor(config: ServeConfig) -> None:
    """Bring what predicts lengths into the cache, if it is not there. Raises CatalogError and UserError."""
    length = choose_predictor(config)
    if length not in KINDS:
        return
    try:
        Catalog().resolve(config.embedder)
        if length is Length.PROXY:
            read_manifest(proxy_path(default_cache(), config.model))
    except CatalogError as error:
        raise CatalogError(f"{error}; or serve without predicted lengths: --length-predictor none") from error


def cache_size(config: ServeConfig, kind: PredictorKind) -> int:
    """Prompts that the length cache holds; 0 where there is none."""
    return kind.cache_size if config.length_cache_size is None else config.length_cache_size
