"""SSJF's experiments on the real engine: batches and numbers of requests as in the paper, lengths scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from loadgen.experiments.paper import published
from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.real.ground import Ground, times
from loadgen.experiments.paper.real.plan import Plan, Rows, Run
from loadgen.experiments.paper.ssjf import (
    LONGEST,
    MODES,
    ORDERS,
    RIGHT,
    ROUNDS_RIGHT,
    SHOWN,
    SIZE,
    round_predictions,
    size_rows,
    sjf_rows,
)
from loadgen.experiments.paper.stage import Stage, limits, missing
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits

LOADS = (4.0, 16.0)
"""Rates, as multiples of what `fcfs-none` serves; the simulator that the authors publish has 3 to 33."""
BURST_LOAD = 0.6
"""The same for burstiness, as in that simulator."""
VARIATIONS = (1.0, 4.0)
"""Coefficients of variation of the gaps between arrivals."""
SIZES = (2, 8)
REQUESTS = 30
PROBE = 12
"""Requests, all there from the start, that show what `fcfs-none` serves."""
ROOM = 2
"""Times the memory that rows of the greatest length need: the paper tells of none that ran short."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where to run."""

    name: str
    load: float
    variation: float = 1.0
    size: int = SIZE
    prediction: Prediction | None = None
    """How well lengths are known; None: as Table 2 has it."""


def rates(stage: Stage, ground: Ground) -> Plan:
    """Figures 4 and 6."""
    points = [Point(f"{load:g} ×", load) for load in ground.loads or LOADS]
    return _plan(
        stage, ground, "rates, Figs. 4 and 6", points, MODES, lambda lines: sjf_rows(lines, published.SSJF_RATES)
    )


def burstiness(stage: Stage, ground: Ground) -> Plan:
    """Figures 5 and 7."""
    points = [Point(f"CV {variation:g}", BURST_LOAD, variation) for variation in VARIATIONS]
    return _plan(
        stage,
        ground,
        "burstiness, Figs. 5 and 7",
        points,
        MODES,
        lambda lines: sjf_rows(lines, published.SSJF_BURSTINESS),
    )


def sizes(stage: Stage, ground: Ground) -> Plan:
    """Figure 8."""
    points = [Point(f"{size} rows", max(ground.loads or LOADS), size=size) for size in SIZES]
    return _plan(stage, ground, "batch sizes, Fig. 8", points, ("dynamic", "continuous"), size_rows, sweeping=True)


def rounds(stage: Stage, ground: Ground) -> Plan:
    """Figure 9, as in the simulator: rounds differ in how well their answers' lengths are predicted."""
    load, known = min(ground.loads or LOADS), round_predictions(stage)
    points = [Point(name, load, prediction=prediction) for name, prediction in known.items()]
    said = {f"ssjf-{mode}": published.SSJF_ROUNDS for mode in MODES}
    title = "conversation rounds, Fig. 9"
    return _plan(stage, ground, title, points, MODES, lambda lines: sjf_rows(lines, said), right=ROUNDS_RIGHT)


def _plan(
    stage: Stage,
    ground: Ground,
    figures: str,
    points: Sequence[Point],
    modes: Sequence[str],
    rows: Rows,
    sweeping: bool = False,
    right: str = RIGHT,
) -> Plan:
    names = [f"{order}-{mode}" for mode in modes for order in ORDERS]
    served = stage.capacity("fcfs-none", _machine(ground, SIZE), _limits(ground, SIZE), PROBE)
    runs = [
        Run(
            name,
            point.name,
            _machine(ground, point.size),
            _load(stage, ground, point, served),
            _limits(ground, point.size),
            point.prediction,
        )
        for point in points
        for name in stage.known(names)
    ]
    setting = _setting(ground, served, points, right)
    return Plan(f"SSJF, on the engine: {figures}", setting, SHOWN, runs, rows, missing(stage, names), sweeping)


def _machine(ground: Ground, size: int) -> Machine:
    context = ground.context(LONGEST)
    return ground.machine(context, ROOM * size, slots=size)


def _limits(ground: Ground, size: int) -> Limits:
    return limits(group_tokens=ground.chunk_tokens, max_batch_size=size, prefill_ahead=0)


def _load(stage: Stage, ground: Ground, point: Point, served: float) -> Load:
    rate = point.load * served
    count = REQUESTS if ground.duration is None else max(2, round(rate * ground.duration))
    return Load(rate, count, point.variation**-2, stage.setting.seed)


def _setting(ground: Ground, served: float, points: Sequence[Point], right: str) -> str:
    loads = tuple(dict.fromkeys(point.load for point in points))
    last = f"{REQUESTS} requests" if ground.duration is None else f"{ground.duration:g} s of arrivals"
    return (
        f"{ground.told(ground.context(LONGEST))}; {last} a run, at {times(loads, served, 'fcfs-none')}; at most {SIZE} "
        f"rows unless said; predictions fall into the right one of {published.SSJF_CLASSES} classes in {right}; "
        "throughput, which the text does not define, counts requests answered before the last one comes"
    )


EXPERIMENTS: Mapping[str, Callable[[Stage, Ground], Plan]] = MappingProxyType(
    {"rates": rates, "burstiness": burstiness, "sizes": sizes, "rounds": rounds}
)
