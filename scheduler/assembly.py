"""Assembles a strategy's parts."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from engine.messages import Entry
from models.errors import StrategyError, UsageError, UserError
from models.options import suggest
from scheduler.batching.batcher import Batcher, BatcherFactory, BatcherParts, BatchLimits, OrderFactory
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.dp import DpBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS
from scheduler.batching.round_robin import RoundRobinBatcher
from scheduler.batching.static import StaticBatcher
from scheduler.batching.wma import WmaBatcher
from scheduler.learner import Submit, inline
from scheduler.observers import PlanObserver
from scheduler.placement import PLACEMENTS, Placement
from scheduler.serving_time.bilinear import Bilinear, ServingTime
from scheduler.serving_time.machine import MachineModel, StepLearning
from scheduler.serving_time.nearest import BatchLearning, Nearest
from scheduler.strategy import STRATEGIES, Strategy, describe
from scheduler.waiting.by_length import AgedSjf, ByRank, Fcfs, Sjf, gittins_rank, inflated_score
from scheduler.waiting.by_program import PausedSmallest, VirtualFinish, attained_level, run_arrival
from scheduler.waiting.by_work import Boost, FairSojourn, ResponseRatio, attained_work, find_level
from scheduler.waiting.fair import share_out
from scheduler.waiting.order import ByScore
from scheduler.waiting.out_of_turn import OutOfTurn
from scheduler.waiting.prices import Prices, PricesNow, device_prices
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.trial import try_order


@dataclass(frozen=True, slots=True)
class Estimates:
    machine: MachineModel = field(default_factory=MachineModel)
    prices: PricesNow = device_prices
    serving_time: ServingTime | None = None  # as the strategy does; None where unused
    steps: StepLearning | None = None  # None where the machine's model is given
    batches: BatchLearning | None = None  # None where that model is used


@dataclass(frozen=True, slots=True)
class SchedulerParts:
    batcher: Batcher
    placement: Placement
    estimates: Estimates = field(default_factory=Estimates)
    observers: tuple[PlanObserver, ...] = ()
    strategy: str = ""
    calibrated: bool = False  # scale predictions by how they turned out


def assemble(
    strategy: Strategy, limits: BatchLimits, machine: Bilinear | StepLearning | None = None, submit: Submit = inline
) -> SchedulerParts:
    """`submit` runs learning elsewhere. Raises StrategyError."""
    estimates = make_estimates(strategy, limits, machine, submit)
    batcher = make_batcher(strategy, limits, make_queue(strategy, limits, estimates), estimates)
    placement = _find("placement", strategy, PLACEMENTS)
    observers = () if estimates.batches is None else (estimates.batches,)
    return SchedulerParts(batcher, placement, estimates, observers, strategy.name, strategy.calibrated)


SERVING_TIMES: Mapping[str, Callable[[MachineModel], ServingTime]] = {"bilinear": lambda one: one, "nearest": Nearest}


def make_estimates(
    strategy: Strategy, limits: BatchLimits, machine: Bilinear | StepLearning | None, submit: Submit
) -> Estimates:
    """From the machine's model, given or learned (None)."""
    if machine is None:
        machine = StepLearning(MachineModel(), submit)
    steps, known = (None, MachineModel(machine)) if isinstance(machine, Bilinear) else (machine, machine.machine)
    serving_time = None if strategy.serving_time is None else _find("serving_time", strategy, SERVING_TIMES)(known)
    batches = BatchLearning(serving_time, submit) if isinstance(serving_time, Nearest) else None
    return Estimates(known, partial(_prices, known, limits), serving_time, steps, batches)


def _prices(machine: MachineModel, limits: BatchLimits) -> Prices:
    return device_prices(machine.model, limits.slots, limits.capacity_tokens, limits.context_length)


ORDERS: Mapping[str, OrderFactory] = {
    "fcfs": lambda limits, prices: Fcfs(),
    "sjf": lambda limits, prices: Sjf(),
    "out-of-turn": lambda limits, prices: OutOfTurn(limits.options.out_of_turn, limits.usual_rows),
    "sjf-aged": lambda limits, prices: AgedSjf(limits.aging),
    "boost": lambda limits, prices: Boost(prices, limits.options.boost_gamma),
    "boost-attained": lambda limits, prices: Boost(prices, limits.options.boost_gamma, attained_work),
    "gittins": lambda limits, prices: ByScore(lambda one: gittins_rank(one, prices())),
    "tail-inflated": lambda limits, prices: ByScore(inflated_score),
    "feedback": lambda limits, prices: ByScore(lambda one: find_level(one, prices())),
    "rank": lambda limits, prices: ByRank(limits.aging),
    "fair-sojourn": lambda limits, prices: FairSojourn(),
    "hrrn": lambda limits, prices: ResponseRatio(lambda one: prices().work(one)),
    "program-arrival": lambda limits, prices: ByScore(run_arrival),
    "program-attained": lambda limits, prices: ByScore(attained_level),
    "program-finish": lambda limits, prices: VirtualFinish(),
    "program-paused": lambda limits, prices: PausedSmallest(limits.capacity_tokens),
    "hrrn-prompt": lambda limits, prices: ResponseRatio(lambda one: one.tokens - one.cached_prompt),
}


def make_queue(strategy: Strategy, limits: BatchLimits, estimates: Estimates) -> Callable[[], RankedQueue]:
    """Fair if asked; raises UserError where impossible."""
    shares = {} if limits.shares is None and strategy.shared else limits.shares
    if shares is not None and not can_share(strategy):
        raise UsageError(f"strategy {strategy.name} cannot share service out to clients: leave out --fair")
    timed = limits.timed(estimates.machine.model)
    order = strategy.order if callable(strategy.order) else _find("order", strategy, ORDERS)

    new_order = partial(order, timed, estimates.prices)
    if shares is None:
        return lambda: RankedQueue(new_order(), timed.aging)
    return lambda: RankedQueue(share_out(new_order, shares, timed.aging), timed.aging)


Suits = Mapping[str, Collection[object]]  # column -> choices that a batcher works with

_ROOM = ("scale", "fixed", "whole", "peak", "paged")
_QUEUED: Suits = {"memory": _ROOM, "serving_time": (None,), "preemption": ("none",)}
_LOCAL: Suits = {**_QUEUED, "slices": (False,)}
_JOINING: Suits = {**_LOCAL, "preemption": PREEMPTIONS}
_ARRANGED: Suits = {"order": ("fcfs",), "memory": (*_ROOM, "predicted"), "preemption": ("none",), "shared": (False,)}
_SLICES: Suits = {"memory": ("slice", "deepspeed"), "slices": (True,), "serving_time": (None, "bilinear")}
_SLICING: Suits = {**_QUEUED, **_SLICES, "shared": (False,)}


@dataclass(frozen=True, slots=True)
class Batching:
    make: BatcherFactory
    suits: Suits
    joins: bool = False

    def suited(self, strategy: Strategy) -> BatcherFactory:
        """Raises StrategyError."""
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


BATCHERS: Mapping[str, Batching] = {
    "join": Batching(ContinuousBatcher, _JOINING, joins=True),
    "fixed": Batching(StaticBatcher, _QUEUED),
    "one": Batching(partial(StaticBatcher, rows=1), _QUEUED),
    "wma": Batching(WmaBatcher, _ARRANGED),
    "wma-fixed": Batching(partial(WmaBatcher, fixed_size=True), _ARRANGED),
    "round-robin-fixed": Batching(partial(RoundRobinBatcher, local=StaticBatcher), _QUEUED),
    "round-robin-join": Batching(partial(RoundRobinBatcher, local=ContinuousBatcher), _LOCAL, joins=True),
    "dp": Batching(DpBatcher, _SLICING),
    "dp-capped": Batching(partial(DpBatcher, capped=True), _SLICING),
    "dp-adaptive": Batching(partial(DpBatcher, adaptive=True), _SLICING),
}


def make_batcher(
    strategy: Strategy, limits: BatchLimits, new_queue: Callable[[], RankedQueue], estimates: Estimates
) -> Batcher:
    """Raises StrategyError."""
    memory, preemption = _find("memory", strategy, MEMORIES), _find("preemption", strategy, PREEMPTIONS)
    terms = replace(strategy.refill, iterations=limits.options.slice_length if strategy.slices else None)
    machine, seconds = estimates.machine, estimates.serving_time
    kit = BatcherParts(new_queue, memory, limits, terms, strategy.returns, machine, seconds, preemption)
    batching = strategy.batching
    make = batching if callable(batching) else _find("batching", strategy, BATCHERS).suited(strategy)
    try:
        return make(kit)
    except StrategyError as error:
        raise _refusal("order", strategy, str(error)) from None


def can_share(strategy: Strategy) -> bool:
    batching = None if callable(strategy.batching) else _find("batching", strategy, BATCHERS)
    return batching is not None and "shared" not in batching.suits and strategy.preemption == "none"


Part = TypeVar("Part")


def _find(column: str, strategy: Strategy, table: Mapping[str, Part]) -> Part:
    """Raises StrategyError."""
    choice = getattr(strategy, column)
    if choice not in table:
        raise _refusal(column, strategy, f"is none of {', '.join(sorted(table))}")
    return table[choice]


def _refusal(column: str, strategy: Strategy, reason: str) -> StrategyError:
    return StrategyError(f"strategy {strategy.name}: {column}={getattr(strategy, column)!r}: {reason}")


def find_strategy(name: str) -> Strategy:
    """Raises StrategyError."""
    if name not in STRATEGIES:
        near = suggest(name, STRATEGIES) or f", which are {', '.join(STRATEGIES)}, PACKAGE:ROW and FILE.py:ROW"
        raise StrategyError(f"{name} is none of the strategies{near}")
    strategy = STRATEGIES[name]
    limits = BatchLimits(group_tokens=1, prefill_ahead=0)
    try:
        assemble(strategy, limits)
        if callable(strategy.order):
            try_order(make_queue(strategy, limits, Estimates())())
    except UserError:
        raise
    except Exception as error:  # others' code
        raise StrategyError(f"strategy {name}: fails in a trial: {describe(error, name)}") from error
    return strategy


def find_strategies(names: Iterable[str]) -> dict[str, Strategy]:
    """Of --strategies; raises StrategyError."""
    try:
        return {name: find_strategy(name) for name in names}
    except StrategyError as error:
        raise StrategyError(f"--strategies: {error}") from None
