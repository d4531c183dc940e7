"""Puts a strategy's parts together, each looked up by its name in the strategy's row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from models.errors import UserError
from models.options import suggest
from scheduler.batching.background import Background
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Limits, OrderFactory
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.dp_batcher import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS, Preemption
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.batching.wma_batcher import WmaBatcher
from scheduler.observers import PlanObserver, PlanObservers
from scheduler.outside import StrategyError
from scheduler.placement.executors import PLACEMENTS, Placement
from scheduler.serving_time.bilinear import Bilinear, ServingTime
from scheduler.serving_time.machine import MachineModel, StepLearning, Submit, inline
from scheduler.serving_time.nearest import BatchLearning, Nearest
from scheduler.strategy import STRATEGIES, Strategy
from scheduler.waiting.hrrn import BATCH_ORDERS
from scheduler.waiting.orders.aged import AgedSjf
from scheduler.waiting.orders.boost import Boost, attained_work, predicted_work
from scheduler.waiting.orders.fair_sojourn import FairSojourn
from scheduler.waiting.orders.fcfs import Fcfs
from scheduler.waiting.orders.feedback import Feedback
from scheduler.waiting.orders.gittins import Gittins
from scheduler.waiting.orders.out_of_turn import OutOfTurn
from scheduler.waiting.orders.rank import ByRank
from scheduler.waiting.orders.response_ratio import ResponseRatio
from scheduler.waiting.orders.sjf import Sjf
from scheduler.waiting.orders.tail_inflated import TailInflated
from scheduler.waiting.prices import Prices, PricesNow, device_prices

ORDERS: Mapping[str, OrderFactory] = MappingProxyType(
    {
        "fcfs": lambda limits, prices: Fcfs(),
        "sjf": lambda limits, prices: Sjf(),
        "out-of-turn": lambda limits, prices: OutOfTurn(limits.options.out_of_turn, limits.usual_rows),
        "sjf-aged": lambda limits, prices: AgedSjf(limits.aging),
        "boost": lambda limits, prices: Boost(prices, limits.options.boost_gamma, predicted_work),
        "boost-attained": lambda limits, prices: Boost(prices, limits.options.boost_gamma, attained_work),
        "gittins": lambda limits, prices: Gittins(prices),
        "tail-inflated": lambda limits, prices: TailInflated(),
        "feedback": lambda limits, prices: Feedback(prices),
        "rank": lambda limits, prices: ByRank(limits.aging),
        "fair-sojourn": lambda limits, prices: FairSojourn(),
        "hrrn": lambda limits, prices: ResponseRatio(lambda one: prices().work(one)),
        "hrrn-prompt": lambda limits, prices: ResponseRatio(lambda one: one.unread),
    }
)
"""Orders, below which requests that are due by their deadline always come first."""

BATCHERS = MappingProxyType[str, BatcherFactory](
    {
        "join": ContinuousBatcher,
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

SERVING_TIMES: Mapping[str, Callable[[MachineModel], ServingTime]] = MappingProxyType(
    {"bilinear": lambda machine: machine, "nearest": Nearest}
)

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement
    observer: PlanObserver = PlanObservers(())
    """Learns from plans that are over."""
    preemptions: tuple[Preemption, ...] = ()
    """When running rows make way."""
    steps: StepLearning | None = None
    """Learns from the reports of steps; None where the machine's model is given."""
    learning: BatchLearning | StepLearning | None = None
    """Learns the serving times that the strategy goes by."""
    prices: PricesNow = device_prices
    """Prices of rows on this machine, as far as they are known."""
    strategy: str = ""
    """Name of the strategy."""
    calibrated: bool = False
    """Whether predictions count for what such predictions turned out to be."""


def assemble(
    strategy: Strategy, limits: Limits, machine: Bilinear | StepLearning | None = None, submit: Submit = inline
) -> Parts:
    """Look each part up and put them together; `submit` runs what a part learns while others work.

    The machine's model stays as it is given, or is learned from the steps that are served; None begins without any.

    Raises StrategyError for a choice that no part's table has.
    """
    if machine is None:
        machine = StepLearning(MachineModel(), submit)
    steps, known = (None, MachineModel(machine)) if isinstance(machine, Bilinear) else (machine, machine.machine)
    limits = _time(limits, known.model)
    if limits.shares is None and strategy.shared:
        limits = replace(limits, shares={})
    if limits.shares is not None and not strategy.can_share:
        raise UserError(f"strategy {strategy.name} cannot share service out to clients: leave out --fair")
    estimator, batching = _estimator(strategy, known), strategy.batching
    order = strategy.order if callable(strategy.order) else _find("order", strategy, ORDERS)
    prices = partial(_prices, known, limits)
    kit = Kit(
        new_order=lambda: order(limits, prices),
        memory=_find("memory", strategy, MEMORIES),
        limits=limits,
        terms=replace(strategy.refill, iterations=limits.options.slice_length if strategy.slices else None),
        returns=strategy.returns,
        machine=known,
        estimator=estimator,
        batch_order=_find("batch_order", strategy, BATCH_ORDERS),
    )
    learning = None
    if isinstance(estimator, Nearest):
        learning = BatchLearning(estimator, submit)
    preemption = _find("preemption", strategy, PREEMPTIONS)(kit)
    background = None if kit.terms.closed else Background(limits.options.batch_slowdown, known)
    preemptions = tuple(one for one in (preemption, background) if one is not None)
    batcher = (batching if callable(batching) else _find("batching", strategy, BATCHERS))(kit)
    placement = _find("placement", strategy, PLACEMENTS)
    observer = PlanObservers(() if learning is None else (learning,))
    learner = learning or steps
    return Parts(batcher, placement, observer, preemptions, steps, learner, prices, strategy.name, strategy.calibrated)


def _prices(machine: MachineModel, limits: Limits) -> Prices:
    """Prices of rows on this machine, by its present model."""
    return device_prices(machine.model, limits.slots, limits.capacity_tokens, limits.context_length)


def _time(limits: Limits, profile: Bilinear | None) -> Limits:
    """Limits with the seconds of a token of this machine when rows of half the longest length take all slots."""
    if profile is None:
        return limits
    rows = limits.slots or 1
    columns = min(limits.context_length or 0, (limits.capacity_tokens or 0) / rows) / 2
    return replace(limits, seconds_per_token=profile.iteration(float(rows), columns))


def _estimator(strategy: Strategy, machine: MachineModel) -> ServingTime | None:
    return None if strategy.serving_time is None else _find("serving_time", strategy, SERVING_TIMES)(machine)


def _find(column: str, strategy: Strategy, table: Mapping[str, Part]) -> Part:
    """The part that a strategy names in a column; raises StrategyError where there is none of that name."""
    choice = getattr(strategy, column)
    if choice not in table:
        raise StrategyError(f"strategy {strategy.name}: {column}={choice!r} is none of {', '.join(sorted(table))}")
    return table[choice]


def find_strategy(name: str) -> Strategy:
    """The row of a name, of which every part has been put together once.

    Raises StrategyError for a name that is unknown, and for a row that cannot be had or names a part that is none.
    """
    if name not in STRATEGIES:
        near = suggest(name, STRATEGIES)
        raise StrategyError(f"{name} is none of {', '.join(STRATEGIES)}, PACKAGE:ROW, FILE.py:ROW{near}")
    strategy = STRATEGIES[name]
    assemble(strategy, Limits(group_tokens=1, prefill_ahead=0))
    return strategy


def find_strategies(names: Iterable[str]) -> dict[str, Strategy]:
    """The rows of the names that the flag --strategies has, by name; raises StrategyError."""
    try:
        return {name: find_strategy(name) for name in names}
    except StrategyError as error:
        raise StrategyError(f"--strategies: {error}") from None
