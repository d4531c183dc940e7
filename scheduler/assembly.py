"""Puts a strategy's parts together, each looked up by its name in the strategy's row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from models.errors import UserError
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Limits
from scheduler.batching.continuous import ContinuousBatcher, join_cheapest
from scheduler.batching.dp_batcher import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS, Preemption
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.batching.wma_batcher import WmaBatcher
from scheduler.observers import PlanObserver
from scheduler.placement import PLACEMENTS, Placement
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.estimator import BilinearEstimator, ServingTime
from scheduler.serving_time.learning import BatchLearning, Submit, inline
from scheduler.serving_time.nearest import Nearest, NearestLessons, profile_batches
from scheduler.serving_time.refit import RefitData, RefitLessons
from scheduler.strategy import Strategy
from scheduler.waiting.aged import AgedSjf, Aging
from scheduler.waiting.due import DueFirst
from scheduler.waiting.fcfs import Fcfs
from scheduler.waiting.hrrn import BATCH_ORDERS
from scheduler.waiting.queue import Order
from scheduler.waiting.sjf import Sjf

ORDERS: Mapping[str, Callable[[Aging], Order]] = MappingProxyType(
    {
        "fcfs": lambda aging: DueFirst(Fcfs(), aging),
        "sjf": lambda aging: DueFirst(Sjf(), aging),
        "sjf-aged": lambda aging: DueFirst(AgedSjf(aging), aging),
    }
)

BATCHERS = MappingProxyType[str, BatcherFactory](
    {
        "join": ContinuousBatcher,
        "join-cheapest": join_cheapest,
        "fixed": StaticBatcher,
        "one": partial(StaticBatcher, rows=1),
        "wma": WmaBatcher,
        "wma-fixed": partial(WmaBatcher, fixed_size=True),
        "round-robin-fixed": partial(RoundRobinBatcher, local=StaticBatcher),
        "round-robin-join": partial(RoundRobinBatcher, local=ContinuousBatcher),
        "dp": DpBatcher,
        "dp-capped": partial(DpBatcher, capped=True),
        "dp-adaptive": partial(DpBatcher, adaptive=True),
    }
)


SERVING_TIMES: Mapping[str, Callable[[BilinearEstimator], ServingTime]] = MappingProxyType(
    {"bilinear": lambda machine: machine, "nearest": Nearest}
)


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement
    observer: PlanObserver | None = None
    """Learns from plans that are over."""
    preemption: Preemption | None = None
    """None where running rows never make way for waiting requests."""
    learning: BatchLearning[Any] | None = None
    """The observer, where it learns serving times."""


def assemble(
    strategy: Strategy,
    limits: Limits,
    profile: Bilinear | None = None,
    submit: Submit = inline,
    refit_data: RefitData | None = None,
) -> Parts:
    """Look each part up and put them together; `submit` runs what a part learns while others work.

    With `refit_data`, the bilinear model is fitted again while batches are served; else it stays the profile's.

    Raises KeyError for a choice that no part's table has, and UserError where the machine's profile is wanted.
    """
    limits = replace(limits, aging=_aging(limits, profile))
    machine = None if profile is None else BilinearEstimator(profile)
    estimator = _estimator(strategy, machine)
    kit = Kit(
        order=ORDERS[strategy.order](limits.aging),
        memory=MEMORIES[strategy.memory],
        limits=limits,
        terms=replace(strategy.refill, iterations=limits.slice_length if strategy.slices else None),
        returns=strategy.returns,
        machine=machine,
        estimator=estimator,
        batch_order=BATCH_ORDERS[strategy.batch_order],
    )
    learning = _learning(estimator, limits, profile, submit, refit_data)
    preemption = PREEMPTIONS[strategy.preemption](kit)
    return Parts(BATCHERS[strategy.batching](kit), PLACEMENTS[strategy.placement], learning, preemption, learning)


def _learning(
    estimator: ServingTime | None,
    limits: Limits,
    profile: Bilinear | None,
    submit: Submit,
    refit_data: RefitData | None,
) -> BatchLearning[Any] | None:
    """The learning of the estimator, if it can learn."""
    if profile is not None and isinstance(estimator, Nearest):
        basis = profile_batches(profile, limits.slots, limits.context_length)
        return BatchLearning(NearestLessons(estimator, basis), submit)
    if refit_data is not None and isinstance(estimator, BilinearEstimator):
        return BatchLearning(RefitLessons(estimator, refit_data), submit)
    return None


def _aging(limits: Limits, profile: Bilinear | None) -> Aging:
    """Aging with the seconds of a token of this machine when rows of half the longest length take all slots."""
    if profile is None:
        return limits.aging
    rows = limits.slots or 1
    columns = min(limits.context_length or 0, (limits.capacity_tokens or 0) / rows) / 2
    return replace(limits.aging, seconds_per_token=profile.iteration(float(rows), columns))


def _estimator(strategy: Strategy, machine: BilinearEstimator | None) -> ServingTime | None:
    if strategy.serving_time is None:
        return None
    if machine is None:
        raise UserError(
            f"strategy {strategy.name} needs to know what a batch takes on this machine: run `lengthwise profile` first"
        )
    return SERVING_TIMES[strategy.serving_time](machine)
