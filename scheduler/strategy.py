"""The table of strategies: each a named combination of the scheduler's parts, one choice a column (design, 4).

A strategy is data. To add one, add a row here, and a pure function where a column needs a new choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from engine.messages import Entry, Overflow, Terms
from scheduler.adaptive import AdaptiveBatcher
from scheduler.assignment import Observer
from scheduler.batch_learning import BatchLearning, Submit, inline, profile_lessons
from scheduler.batch_order import BATCH_ORDERS
from scheduler.batching import Batcher, BatcherFactory, Kit, Limits
from scheduler.bilinear import Bilinear
from scheduler.dealt import DealtBatcher
from scheduler.fixed import FixedBatcher
from scheduler.join import JoinBatcher
from scheduler.memory import MEMORIES
from scheduler.nearest import Nearest
from scheduler.order import ORDERS
from scheduler.placement import PLACEMENTS, Placement
from scheduler.plan import Returns
from scheduler.serving_time import SERVING_TIMES, ServingTime
from scheduler.sliced import SlicedBatcher

BATCHERS = MappingProxyType[str, BatcherFactory](
    {
        "join": JoinBatcher,
        "fixed": FixedBatcher,
        "wma": AdaptiveBatcher,
        "wma-fixed": partial(AdaptiveBatcher, fixed_size=True),
        "dealt-fixed": partial(DealtBatcher, local=FixedBatcher),
        "dealt-join": partial(DealtBatcher, local=JoinBatcher),
        "dp": SlicedBatcher,
        "dp-capped": partial(SlicedBatcher, capped=True),
        "dp-adaptive": partial(SlicedBatcher, adaptive=True),
    }
)

EMBED = Terms()
SHAPE = Terms(entry=Entry.SHAPE)
CLOSED = Terms(closed=True)
CLOSED_SPLIT = Terms(closed=True, overflow=Overflow.SPLIT)


class StrategyError(ValueError):
    """A strategy cannot work here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table; texts name an entry of their part's own table."""

    name: str
    order: str = "fcfs"
    batching: str = "join"
    refill: Terms = EMBED
    """How rows get into a batch, and what becomes of their slots."""
    slices: bool = False
    """Whether a batch ends after `slice_length` iterations."""
    returns: Returns = Returns.ROW_END
    placement: str = "idle-first"
    memory: str = "scale"
    batch_order: str = "fcfs"
    """Which batch goes first, where batches are arranged before an executor is idle."""
    serving_time: str | None = None
    """Who estimates what a batch takes; None where nobody asks."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement
    observer: Observer | None = None
    """Who learns from how plans went."""


_MAGNUS = Strategy("", batching="wma", refill=CLOSED_SPLIT, returns=Returns.BATCH_END, memory="predicted")

_SLS = Strategy(
    "",
    batching="dealt-fixed",
    refill=CLOSED,
    returns=Returns.BATCH_END,
    placement="round-robin",
    memory="fixed",
)
_SLICED = Strategy("", refill=CLOSED, slices=True, placement="round-robin", memory="slice", serving_time="bilinear")

_TABLE = (
    # Magnus's baselines
    Strategy("vs", batching="fixed", refill=CLOSED, returns=Returns.BATCH_END, memory="fixed"),
    Strategy("ccb", refill=SHAPE, memory="fixed"),
    # Magnus, and what is left of it without its serving times, and without its batch sizes
    replace(_MAGNUS, name="glp", batching="wma-fixed", refill=CLOSED, memory="fixed"),
    replace(_MAGNUS, name="abp"),
    replace(_MAGNUS, name="magnus", batch_order="hrrn", serving_time="nearest"),
    # SCLS's baselines, and SCLS as it is put together part by part
    replace(_SLS, name="sls"),
    replace(_SLS, name="so", slices=True, returns=Returns.ROW_END),
    replace(_SLICED, name="pm", batching="dp-capped"),
    replace(_SLICED, name="ab", batching="dp"),
    replace(_SLICED, name="lb", batching="dp", placement="max-min"),
    replace(_SLICED, name="scls", batching="dp-adaptive", placement="max-min"),
    Strategy("ils", batching="dealt-join", refill=SHAPE, placement="round-robin", memory="whole"),
    # SSJF's modes without a predictor
    Strategy("fcfs-dynamic", batching="fixed", refill=CLOSED, memory="fixed"),
    Strategy("fcfs-continuous", memory="fixed"),
    # Baton, and what it compares itself with
    Strategy("benchmark", batching="fixed", refill=CLOSED, memory="fixed"),
    Strategy("pd", batching="fixed", refill=replace(CLOSED, prefill_together=False), memory="fixed"),
    Strategy("baton", refill=SHAPE),
    Strategy("baton-pd"),
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _TABLE})


def assemble(
    strategy: Strategy, limits: Limits, serving_time: Bilinear | None = None, submit: Submit = inline
) -> Parts:
    """Look each part up and put them together; `submit` is for what one of them learns while others work.

    Raises KeyError for a choice that no part's table has, and StrategyError where the machine's profile is wanted.
    """
    iterations = limits.slice_length if strategy.slices else None
    terms = replace(strategy.refill, iterations=iterations, keep_kv=not limits.recompute)
    estimator = _estimator(strategy, serving_time)
    kit = Kit(
        order=ORDERS[strategy.order],
        memory=MEMORIES[strategy.memory],
        limits=limits,
        terms=terms,
        returns=strategy.returns,
        serving_time=serving_time,
        estimator=estimator,
        batch_order=BATCH_ORDERS[strategy.batch_order],
    )
    observer = None
    if serving_time is not None and isinstance(estimator, Nearest):
        observer = BatchLearning(estimator, submit, basis=profile_lessons(serving_time, limits))
    return Parts(BATCHERS[strategy.batching](kit), PLACEMENTS[strategy.placement], observer)


def _estimator(strategy: Strategy, profile: Bilinear | None) -> ServingTime | None:
    if strategy.serving_time is None:
        return None
    if profile is None:
        raise StrategyError(
            f"strategy {strategy.name} needs to know what a batch takes on this machine: run `lengthwise profile` first"
        )
    return SERVING_TIMES[strategy.serving_time](profile)
