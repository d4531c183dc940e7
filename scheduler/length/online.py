"""Learns answer lengths online (design 2.2): features cost microseconds, and forests are fitted elsewhere."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from scheduler.clock import Clock
from scheduler.learner import Learner, Lesson, Submit
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.forest import Examples, Forest, Growth, grow
from scheduler.length.holders import HolderStore, holder_of
from scheduler.length.learning import ServedRow, completed, row_error
from scheduler.length.nearest import NearestPrompts
from scheduler.length.prediction import TAILS, Estimate, LengthDistribution, Source
from scheduler.length.words import Prompts, WordScore, bag, held_out_scores

log = logging.getLogger(__name__)

GROWTH = Growth(trees=50, min_leaf=3, random_cuts=True)

FEWEST = 64  # answers for the first forest

MORE = 0.5  # share of new answers before the next: all forests cost a few times the last

PAUSE = 50.0  # seconds between forests for each of the last

FIRST_WAIT = 5.0  # seconds at startup for a forest of earlier answers

MOST = 4096  # newest answers of a forest

ROWS = 2**15  # answers of all scopes, 3 kB each with their part of a forest

SCOPES = 32  # of one holder

NEAREST = 256  # newest answers compared

FRESH = 0.05  # share of new answers before these are compared too

HELD_OUT = 0.2  # share, the newest, by which distributions are calibrated


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedForest:
    """A forest, and the ranks in its leaves between which COVERAGE of new answers are."""

    words: WordScore
    forest: Forest
    ranks: tuple[float, float]

    def distributions(self, prompts: Prompts) -> list[LengthDistribution]:
        features = prompts.scored(self.words.scores(prompts))
        return [one.mapped(self.ranks, TAILS) for one in self.forest.distributions(features)]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Prompts, oldest first, and their completed lengths, and whether truncated, (n,)."""

    prompts: Prompts
    lengths: NDArray[np.float32]
    cut: NDArray[np.bool_]

    def where(self, chosen: NDArray[np.bool_]) -> Answers:
        return Answers(self.prompts.where(chosen), self.lengths[chosen], self.cut[chosen])


def fit(answers: Answers, growth: Growth = GROWTH) -> CalibratedForest:
    """Distributional conformal prediction (Chernozhukov, Wüthrich and Zhu, PNAS 118, 2021) from three answers or more:
    a forest of the older ones predicts the newest.
    """
    count = len(answers.lengths)
    newest = np.arange(count) >= min(round((1 - HELD_OUT) * count), count - 1)
    held = answers.where(newest)
    predicted = _grow(answers.where(~newest), growth, TAILS).distributions(held.prompts)
    came = zip(predicted, held.lengths.tolist(), held.cut.tolist(), strict=True)
    low, high = np.quantile([one.ranks(length, cut=was_cut) for one, length, was_cut in came], TAILS).tolist()
    return _grow(answers, growth, (low, high))


def _grow(answers: Answers, growth: Growth, ranks: tuple[float, float]) -> CalibratedForest:
    prompts, lengths = answers.prompts, answers.lengths
    forest = grow(Examples(prompts.scored(held_out_scores(prompts, lengths)), lengths), growth)
    return CalibratedForest(WordScore.fit(prompts, lengths), forest, ranks)


Fit = Callable[[Answers], CalibratedForest]  # may raise anything, and CancelledError at shutdown


@dataclass(slots=True)
class _Scope:
    rows: deque[ServedRow] = field(default_factory=lambda: deque(maxlen=MOST))
    new: int = 0  # since the last forest
    due: int = FEWEST
    forest: CalibratedForest | None = None
    nearest: NearestPrompts | None = None  # until the first forest
    compared: int = 0  # rows then
    told: int = 0  # rows when it last said so
    longest: int = 0  # complete answer


def _without_digest(row: ServedRow) -> ServedRow:
    return replace(row, features=np.array(row.features[:-1], dtype=np.float32))


# scope, rows, and those among them new since the last forest
_Work = tuple[_Scope, Sequence[ServedRow], Sequence[ServedRow]]


class OnlineForest:
    """A forest over words and token embeddings for each scope, from its newest answers. Event loop only."""

    def __init__(
        self, features: TokenFeatures, submit: Submit, clock: Clock, known: Iterable[ServedRow] = (), fit: Fit = fit
    ) -> None:
        """`submit` runs work off the event loop; of earlier answers, oldest first, those with such features count."""
        self._features = features
        self.learner = Learner[_Work]("lengths", self._regrow, submit)
        self._fit = fit
        self._clock = clock
        self._scopes = HolderStore(_Scope, ROWS, SCOPES)
        self._idle = threading.Event()  # no forest grows
        self._idle.set()
        self._rests_until = 0.0
        self.running: Callable[[str], Iterable[ServedRow]] = lambda scope: ()  # answers of a scope, as if cut now
        for row in known:
            if len(row.features) and row.features[-1] == features.digest:
                self._remember(row)
        largest = sorted(self._scopes.all(), key=lambda one: len(one.rows), reverse=True)
        sizes = np.cumsum([len(one.rows) for one in largest])
        if first := [one for one, size in zip(largest, sizes, strict=True) if size <= MOST and len(one.rows) >= FEWEST]:
            self._begin(first)

    async def wait_for_first(self, seconds: float = FIRST_WAIT) -> None:
        """For these seconds at most."""
        if not await asyncio.to_thread(self._idle.wait, seconds):
            log.info("the first forest still grows after %g s: the first requests are served beside it", seconds)

    def add(self, row: ServedRow) -> bool:
        """Whether to predict again what waits: while answers are few."""
        scope = self._remember(row)
        enough = scope.new >= scope.due and len(scope.rows) >= FEWEST
        if enough and self._idle.is_set() and self._clock.now() >= self._rests_until:
            self._begin([scope])
        news = scope.told < NEAREST and len(scope.rows) >= (1 + MORE) * scope.told
        if news:
            scope.told = len(scope.rows)
        return news

    def _remember(self, row: ServedRow) -> _Scope:
        scope = self._scopes.add(holder_of(row.scope), row.scope, _without_digest(row))
        scope.new += 1
        scope.longest = max(scope.longest, 0 if row.cut else row.generated)
        return scope

    def _begin(self, scopes: Sequence[_Scope]) -> None:
        for scope in scopes:
            rows = tuple(scope.rows)
            self.learner.rows.append((scope, self._with_outliving(rows), rows[-scope.new :]))
            scope.due, scope.new = round(max(FEWEST, len(rows)) * MORE), 0
        self._idle.clear()
        self.learner.begin()

    def _regrow(self, work: Sequence[_Work]) -> Lesson | None:
        begun = self._clock.now()
        try:
            for scope, rows, _ in work:
                scope.forest = self._fit(self._answers(rows))
        finally:
            ended = self._clock.now()
            self._rests_until = ended + PAUSE * (ended - begun)
            self._idle.set()
        served = [row for *_, rows in work for row in rows]
        return Lesson(len(served), len(served), row_error(served)) if served else None

    def _answers(self, rows: Sequence[ServedRow]) -> Answers:
        lengths = np.array([row.generated for row in rows], dtype=np.float32)
        cut = np.array([row.cut for row in rows])
        return Answers(Prompts.of([row.features for row in rows], self._features.width), completed(lengths, cut), cut)

    def _with_outliving(self, rows: Sequence[ServedRow]) -> Sequence[ServedRow]:
        """With those running beyond the median among few answers, whose short ones end first."""
        if len(rows) >= NEAREST:
            return rows
        usual = median(row.generated for row in rows)
        longer = [_without_digest(row) for row in self.running(rows[-1].scope) if row.generated >= usual]
        places = np.concatenate([np.linspace(0, 1, len(each)) for each in (rows, longer)])  # held-out ones have both
        return [(*rows, *longer)[place] for place in np.argsort(places, kind="stable")]

    def _find_predictor(self, scope: _Scope) -> CalibratedForest | NearestPrompts | None:
        if scope.forest is not None or not scope.rows:
            return scope.forest
        if scope.nearest is None or len(scope.rows) > (1 + FRESH) * scope.compared:
            answers = self._answers(self._with_outliving([*scope.rows][-NEAREST:]))
            scope.nearest, scope.compared = NearestPrompts.of(answers.prompts, answers.lengths), len(scope.rows)
        return scope.nearest

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """Without distributions until one of the scope's answers has ended."""
        await asyncio.sleep(0)  # one batch a turn of the loop
        features = [(*self._features.read(query.tokens), *bag(query.tokens).tolist()) for query in queries]
        found: list[LengthDistribution | None] = [None] * len(queries)
        for name in {query.scope for query in queries}:
            own = [place for place, query in enumerate(queries) if query.scope == name]
            scope = self._scopes.get(holder_of(name), name)
            if scope is not None and (predictor := self._find_predictor(scope)) is not None:
                asked = Prompts.of([features[place] for place in own], self._features.width)
                for place, one in zip(own, predictor.distributions(asked), strict=True):
                    opened = one.opened(scope.longest, queries[place].max_tokens)
                    found[place] = replace(opened, answers=len(scope.rows))
        digest = self._features.digest
        return [Estimate((*read, digest), one, Source.OWN) for read, one in zip(features, found, strict=True)]
