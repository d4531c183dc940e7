"""From a row of the table to parts that work together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from engine.messages import EVERY_LENGTH, NO_LENGTH
from scheduler.assignment import Observer
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Limits
from scheduler.batching.cheapest import join_cheapest
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.dp_batcher import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS, Preemption
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.batching.wma_batcher import WmaBatcher
from scheduler.placement import PLACEMENTS, Placement
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.estimator import SERVING_TIMES, ServingTime
from scheduler.serving_time.learning import BatchLearning, Submit, inline
from scheduler.serving_time.nearest import Nearest
from scheduler.serving_time.nearest_lessons import NearestLessons, profile_lessons
from scheduler.serving_time.refit_lessons import RefitData, RefitLessons
from scheduler.serving_time.refitted import Refitted
from scheduler.strategy import Strategy
from scheduler.waiting.batch_order import BATCH_ORDERS
from scheduler.waiting.order import ORDERS, Aging
from scheduler.waiting.work import work_of

BATCHERS = MappingProxyType[str, BatcherFactory](
    {
        "join": ContinuousBatcher,
        "join-cheapest": join_cheapest,
        "fixed": StaticBatcher,
        "one": partial(StaticBatcher, rows=1),
        "wma": WmaBatcher,
        "wma-fixed": partial(WmaBatcher, fixed_size=True),
        "dealt-fixed": partial(RoundRobinBatcher, local=StaticBatcher),
        "dealt-join": partial(RoundRobinBatcher, local=ContinuousBatcher),
        "dp": DpBatcher,
        "dp-capped": partial(DpBatcher, capped=True),
        "dp-adaptive": partial(DpBatcher, adaptive=True),
    }
)


class StrategyError(ValueError):
    """A strategy cannot work here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement
    observer: Observer | None = None
    """Who learns from how plans went."""
    preemption: Preemption | None = None
    """None where no row is ever asked to make way for what waits."""
    learning: BatchLearning[Any] | None = None
    """The observer, where it learns serving times."""


def assemble(
    strategy: Strategy,
    limits: Limits,
    serving_time: Bilinear | None = None,
    submit: Submit = inline,
    grounds: RefitData | None = None,
) -> Parts:
    """Look each part up and put them together; `submit` is for what one of them learns while others work.

    With `grounds`, bilinear estimates are fitted again while batches are served; else they stay the profile's.

    Raises KeyError for a choice that no part's table has, and StrategyError where the machine's profile is wanted.
    """
    limits = replace(limits, aging=_aging(limits, serving_time))
    iterations = limits.slice_length if strategy.slices else None
    terms = replace(strategy.refill, iterations=iterations, keep_kv=_kept_lengths(limits, serving_time))
    estimator = _estimator(strategy, serving_time)
    kit = Kit(
        order=ORDERS[strategy.order](limits.aging),
        memory=MEMORIES[strategy.memory],
        limits=limits,
        terms=terms,
        returns=strategy.returns,
        serving_time=serving_time,
        estimator=estimator,
        batch_order=BATCH_ORDERS[strategy.batch_order],
        work=work_of(serving_time, limits.slots, limits.capacity_tokens, limits.context_length, terms.keep_kv),
    )
    learning = _learning(estimator, limits, serving_time, submit, grounds)
    preemption = PREEMPTIONS[strategy.preemption](kit)
    return Parts(BATCHERS[strategy.batching](kit), PLACEMENTS[strategy.placement], learning, preemption, learning)


def _learning(
    estimator: ServingTime | None,
    limits: Limits,
    profile: Bilinear | None,
    submit: Submit,
    grounds: RefitData | None,
) -> BatchLearning[Any] | None:
    """Who teaches the estimator, if it can be taught."""
    if profile is not None and isinstance(estimator, Nearest):
        return BatchLearning(NearestLessons(estimator, profile_lessons(profile, limits)), submit)
    if grounds is not None and isinstance(estimator, Refitted):
        return BatchLearning(RefitLessons(estimator, grounds), submit)
    return None


def _kept_lengths(limits: Limits, profile: Bilinear | None) -> range:
    """Tokens of rows whose K and V stay in host memory when they are handed back; all where nobody can say."""
    if limits.recompute:
        return NO_LENGTH
    return EVERY_LENGTH if profile is None else profile.kept_lengths()


def _aging(limits: Limits, profile: Bilinear | None) -> Aging:
    """With the seconds per token of this machine when all slots are taken by rows of half the room there is."""
    if profile is None:
        return limits.aging
    rows = limits.slots or 1
    columns = min(limits.context_length or 0, (limits.capacity_tokens or 0) / rows) / 2
    return replace(limits.aging, seconds_per_token=profile.iteration(float(rows), columns))


def _estimator(strategy: Strategy, profile: Bilinear | None) -> ServingTime | None:
    if strategy.serving_time is None:
        return None
    if profile is None:
        raise StrategyError(
            f"strategy {strategy.name} needs to know what a batch takes on this machine: run `lengthwise profile` first"
        )
    return SERVING_TIMES[strategy.serving_time](profile)
