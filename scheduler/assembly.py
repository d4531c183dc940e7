"""Puts a strategy's parts together, each looked up by its name in the strategy's row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from engine.messages import Entry
from models.errors import StrategyError, UserError
from models.options import suggest
from scheduler.batching.batcher import Batcher, BatcherFactory, Kit, Limits, OrderFactory
from scheduler.batching.dp import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS
from scheduler.batching.queued import ContinuousBatcher, RoundRobinBatcher, StaticBatcher
from scheduler.batching.wma import WmaBatcher
from scheduler.learner import Learner, Submit, inline
from scheduler.placement import PLACEMENTS, Placement
from scheduler.plan import PlanObserver
from scheduler.serving_time.bilinear import Bilinear, ServingTime
from scheduler.serving_time.machine import MachineModel, StepLearning
from scheduler.serving_time.nearest import BatchLearning, Nearest
from scheduler.strategy import STRATEGIES, Strategy
from scheduler.waiting.by_length import AgedSjf, ByRank, Fcfs, Gittins, Sjf, TailInflated
from scheduler.waiting.by_work import Boost, FairSojourn, Feedback, ResponseRatio, attained_work, predicted_work
from scheduler.waiting.out_of_turn import OutOfTurn
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

Suits: TypeAlias = Mapping[str, Collection[object]]
"""Columns -> the choices that a batcher works with there. In other columns any will do."""

_ROOM = ("scale", "fixed", "whole", "peak", "paged")
_QUEUED: Suits = {"memory": _ROOM, "serving_time": (None,), "preemption": ("none",)}
_LOCAL: Suits = {**_QUEUED, "slices": (False,)}
_JOINING: Suits = {**_LOCAL, "preemption": PREEMPTIONS}  # where any request may join any batch
_ARRANGED: Suits = {"order": ("fcfs",), "memory": (*_ROOM, "predicted"), "preemption": ("none",)}
_SLICING: Suits = {
    **_QUEUED,
    "memory": ("slice", "deepspeed"),
    "slices": (True,),
    "serving_time": (None, "bilinear"),
}


@dataclass(frozen=True, slots=True)
class Batching:
    """A kind of batcher, and what it needs of the other columns."""

    make: BatcherFactory
    suits: Suits
    joins: bool = False
    """Whether rows join running batches."""
    shares: bool = False
    """Whether requests wait in queues of their strategy's order, before which another may stand."""

    def suited(self, strategy: Strategy) -> BatcherFactory:
        """What makes the batcher of a strategy; raises StrategyError for a choice that this batcher would not read, or
        cannot work with."""
        terms = strategy.refill
        if terms.closed == self.joins or (terms.closed and terms.entry is not Entry.EMBED):
            joins = "join running batches" if self.joins else "join no running batch, and so enter by no shape"
            raise _refusal("refill", strategy, f"with batching={strategy.batching!r} rows {joins}")
        for column, choices in self.suits.items():
            if getattr(strategy, column) not in choices:
                only = ", ".join(str(choice) for choice in choices)
                raise _refusal(column, strategy, f"batching={strategy.batching!r} works only with {only}")
        if strategy.placement == "max-min" and strategy.serving_time is None:
            raise _refusal("placement", strategy, "it goes by estimates, which no serving_time makes")
        return self.make


BATCHERS: Mapping[str, Batching] = MappingProxyType(
    {
        "join": Batching(ContinuousBatcher, _JOINING, joins=True, shares=True),
        "fixed": Batching(StaticBatcher, _QUEUED, shares=True),
        "one": Batching(partial(StaticBatcher, rows=1), _QUEUED, shares=True),
        "wma": Batching(WmaBatcher, _ARRANGED),
        "wma-fixed": Batching(partial(WmaBatcher, fixed_size=True), _ARRANGED),
        "round-robin-fixed": Batching(partial(RoundRobinBatcher, local=StaticBatcher), _QUEUED, shares=True),
        "round-robin-join": Batching(
            partial(RoundRobinBatcher, local=ContinuousBatcher), _LOCAL, joins=True, shares=True
        ),
        "dp": Batching(DpBatcher, _SLICING),
        "dp-capped": Batching(partial(DpBatcher, capped=True), _SLICING),
        "dp-adaptive": Batching(partial(DpBatcher, adaptive=True), _SLICING),
    }
)

SERVING_TIMES: Mapping[str | None, Callable[[MachineModel], ServingTime | None]] = MappingProxyType(
    {None: lambda machine: None, "bilinear": lambda machine: machine, "nearest": Nearest}
)

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Parts:
    """A strategy's parts, ready to work."""

    batcher: Batcher
    placement: Placement
    observers: tuple[PlanObserver, ...] = ()
    """Learn from plans that are over."""
    steps: StepLearning | None = None
    """Learns from the reports of steps; None where the machine's model is given."""
    learning: Learner[Any] | None = None
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
    limits = _fit(limits, strategy, known.model)
    prices = partial(_prices, known, limits)
    order = strategy.order if callable(strategy.order) else _find("order", strategy, ORDERS)
    kit = Kit(
        new_order=lambda: order(limits, prices),
        memory=_find("memory", strategy, MEMORIES),
        limits=limits,
        terms=replace(strategy.refill, iterations=limits.options.slice_length if strategy.slices else None),
        returns=strategy.returns,
        machine=known,
        estimator=_find("serving_time", strategy, SERVING_TIMES)(known),
        preemption=_find("preemption", strategy, PREEMPTIONS),
    )
    batching = strategy.batching
    make = batching if callable(batching) else _find("batching", strategy, BATCHERS).suited(strategy)
    batches = BatchLearning(kit.estimator, submit) if isinstance(kit.estimator, Nearest) else None
    learning = batches or steps
    try:
        batcher = make(kit)
    except StrategyError as error:
        raise _refusal("order", strategy, str(error)) from None
    return Parts(
        batcher,
        _find("placement", strategy, PLACEMENTS),
        () if batches is None else (batches,),
        steps,
        None if learning is None else learning.learner,
        prices,
        strategy.name,
        strategy.calibrated,
    )


def can_share(strategy: Strategy) -> bool:
    """Whether another queue may stand before that of its order, such as one that is fair between clients."""
    batching = None if callable(strategy.batching) else _find("batching", strategy, BATCHERS)
    return batching is not None and batching.shares and strategy.preemption == "none"


def _prices(machine: MachineModel, limits: Limits) -> Prices:
    """Prices of rows on this machine, by its present model."""
    return device_prices(machine.model, limits.slots, limits.capacity_tokens, limits.context_length)


def _fit(limits: Limits, strategy: Strategy, profile: Bilinear | None) -> Limits:
    """Limits for a strategy on this machine: who shares service, and what an iteration takes when rows of half the
    longest length take all slots."""
    shares = {} if limits.shares is None and strategy.shared else limits.shares
    if shares is not None and not can_share(strategy):
        raise UserError(f"strategy {strategy.name} cannot share service out to clients: leave out --fair")
    seconds = limits.seconds_per_token
    if profile is not None:
        rows = limits.slots or 1
        columns = min(limits.context_length or 0, (limits.capacity_tokens or 0) / rows) / 2
        seconds = profile.iteration(float(rows), columns)
    return replace(limits, shares=shares, seconds_per_token=seconds)


def _find(column: str, strategy: Strategy, table: Mapping[Any, Part]) -> Part:
    """The part that a strategy names in a column; raises StrategyError where there is none of that name."""
    choice = getattr(strategy, column)
    if choice not in table:
        raise _refusal(column, strategy, f"is none of {', '.join(sorted(filter(None, table)))}")
    return table[choice]


def _refusal(column: str, strategy: Strategy, reason: str) -> StrategyError:
    return StrategyError(f"strategy {strategy.name}: {column}={getattr(strategy, column)!r}: {reason}")


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
