"""The experiments of SSJF (section 4.2): JCT and throughput against rate, burstiness, batch size and round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from loadgen.experiments.paper.accuracy import sigma_for_accuracy
from loadgen.experiments.paper.gains import gain, sjf_rows
from loadgen.experiments.paper.hardware import Hardware
from loadgen.experiments.paper.load import Load, outputs
from loadgen.experiments.paper.plan import Line, Plan, Rows, Run
from loadgen.experiments.paper.row import Row, chain, claim
from loadgen.experiments.paper.stage import GROUP_TOKENS, Stage, limits
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.presets import SSJF
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits

MODES = ("none", "dynamic", "continuous")
ORDERS = ("fcfs", "ssjf", "sjf-oracle")
RATES, BURST_RATE, ROUNDS_RATE = (1.0, 2.0, 5.0, 10.0), 0.19, 5.0
"""Requests a second in the simulator; of rounds, the text names no rate at all."""
LOADS, BURST_LOAD = (4.0, 16.0), 0.6
"""Rates on the engine, as multiples of what `fcfs-none` serves; the simulator that the authors publish has 3 to 33,
and for burstiness 0.6."""
VARIATIONS, REAL_VARIATIONS = (1.0, 2.5, 4.0, 5.5), (1.0, 4.0)
"""Coefficients of variation of the gaps between arrivals, and those of them that are tried on the engine."""
SIZES, REAL_SIZES = (1, 2, 4, 8), (2, 8)
SIZE = 4
"""Rows of a batch (4.2)."""
REQUESTS, RUNS = 50, 20
"""Requests of a run, and runs of each point. These, the rates and the variations are those of the simulator that the
authors publish: the text names none."""
REAL_REQUESTS = 30
PROBE = 12
"""Requests, all there from the start, that show what `fcfs-none` serves."""
ROOM = 2
"""Times the memory that rows of the greatest length need: the paper tells of none that ran short."""
LONGEST = 512
"""Answers are shorter than this (4.3, note on data processing)."""
ACCURACY, CLASSES = 0.615, 5
"""Accuracy of the paper's predictor over classes of length (4.3, Table 2, REG (L1))."""
ROUND_ACCURACY: Mapping[str, float] = MappingProxyType({"round 1": 0.619, "round 2": 0.60})
"""The best and the worst of that accuracy by conversation round (4.3, Fig. 9)."""
RIGHT = f"{ACCURACY:.1%} (Table 2)"
"""Predictions that fall into the right class, where nothing else is said."""
ROUNDS_RIGHT = "the share that each round's name tells"
SHOWN = ("mean", "tail", "answered_meanwhile", "throughput", "batch_size")


@dataclass(frozen=True, slots=True)
class Place:
    """Executors and load of the experiments: the paper's in the simulator, or what fits on the engine."""

    title: str
    machine: Callable[[int], Machine]
    """By the rows of a batch."""
    group_tokens: int
    rates: Sequence[float]
    burst: float
    sizes_rate: float
    rounds_rate: float
    """Rates of the experiments, in units of `served`."""
    unit: str
    """Its name, behind a rate."""
    served: float
    """Requests a second of the unit."""
    variations: Sequence[float]
    sizes: Sequence[int]
    requests: int
    repeats: int
    setting: str

    def named(self, rate: float) -> str:
        return f"{rate:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a sweep."""

    name: str
    rate: float
    variation: float = 1.0
    size: int = SIZE
    prediction: Prediction | None = None
    """The predictor; None: one as good as in Table 2."""


def rates(stage: Stage) -> Plan:
    """Figures 4 and 6."""
    place, rows = _place(stage), partial(sjf_rows, table="rates")
    points = [Point(place.named(rate), rate) for rate in place.rates]
    return _plan(stage, place, "rates, Figs. 4 and 6", points, MODES, rows)


def burstiness(stage: Stage) -> Plan:
    """Figures 5 and 7."""
    place, rows = _place(stage), partial(sjf_rows, table="burstiness")
    points = [Point(f"CV {variation:g}", place.burst, variation) for variation in place.variations]
    return _plan(stage, place, f"burstiness at {place.named(place.burst)}, Figs. 5 and 7", points, MODES, rows)


def sizes(stage: Stage) -> Plan:
    """Figure 8."""
    place = _place(stage)
    points = [Point(f"{size} rows", place.sizes_rate, size=size) for size in place.sizes]
    title = f"batch sizes at {place.named(place.sizes_rate)}, Fig. 8"
    return _plan(stage, place, title, points, ("dynamic", "continuous"), size_rows, sweeping=True)


def rounds(stage: Stage) -> Plan:
    """Figure 9, as far as the text tells how rounds differ: in how well their answers' lengths are predicted."""
    place = _place(stage)
    lengths = outputs(stage.pool.lengths)
    points = [
        Point(
            f"{name}, {accuracy:.1%} right",
            place.rounds_rate,
            prediction=Prediction(sigma_for_accuracy(lengths, CLASSES, accuracy)),
        )
        for name, accuracy in ROUND_ACCURACY.items()
    ]
    rows = partial(sjf_rows, table="rounds")
    title = f"conversation rounds at {place.named(place.rounds_rate)}, Fig. 9"
    return _plan(stage, place, title, points, MODES, rows, right=ROUNDS_RIGHT)


def _plan(
    stage: Stage,
    place: Place,
    title: str,
    points: Sequence[Point],
    modes: Sequence[str],
    rows: Rows,
    sweeping: bool = False,
    right: str = RIGHT,
) -> Plan:
    names = [f"{order}-{mode}" for mode in modes for order in ORDERS]
    runs = [
        Run(
            name,
            point.name,
            place.machine(point.size),
            _load(stage, place, point),
            _limits(point.size, place.group_tokens),
            point.prediction,
            repeats=place.repeats,
        )
        for point in points
        for name in names
    ]
    setting = (
        f"{place.setting}; predictions fall into the right one of {CLASSES} classes in {right}; "
        "throughput, which the text does not define, counts requests answered before the last one comes"
    )
    return Plan(f"{place.title}: {title}", setting, SHOWN, runs, rows, sweeping=sweeping)


def _load(stage: Stage, place: Place, point: Point) -> Load:
    rate, duration = point.rate * place.served, stage.setting.duration
    count = place.requests if duration is None else max(2, round(rate * duration))
    return Load(rate, count, point.variation**-2, stage.setting.seed)


def _limits(size: int, group_tokens: int) -> Limits:
    return limits(group_tokens=group_tokens, max_batch_size=size, prefill_ahead=0)


def _place(stage: Stage) -> Place:
    return _simulated(stage) if stage.hardware is None else _real(stage, stage.hardware)


def _simulated(stage: Stage) -> Place:
    runs = max(1, round(RUNS * stage.setting.scale))
    return Place(
        title="SSJF",
        machine=lambda size: replace(SSJF, max_num_seqs=size),
        group_tokens=GROUP_TOKENS,
        rates=stage.setting.rates or RATES,
        burst=BURST_RATE,
        sizes_rate=RATES[-1],
        rounds_rate=ROUNDS_RATE,
        unit="/s",
        served=1.0,
        variations=VARIATIONS,
        sizes=SIZES,
        requests=REQUESTS,
        repeats=runs,
        setting=f"0.1 s a request and 0.02 s a token, 1 executor, at most {SIZE} rows unless said; means of {runs} "
        f"runs of {_last(stage, REQUESTS)}, as in the simulator that the authors publish",
    )


def _real(stage: Stage, hardware: Hardware) -> Place:
    """Batches and numbers of requests as in the paper, lengths scaled."""
    context, loads = hardware.context(LONGEST), hardware.loads or LOADS

    def machine(size: int) -> Machine:
        return hardware.machine(context, ROOM * size, slots=size)

    served = stage.capacity("fcfs-none", machine(SIZE), _limits(SIZE, hardware.chunk_tokens), PROBE)
    return Place(
        title="SSJF, on the engine",
        machine=machine,
        group_tokens=hardware.chunk_tokens,
        rates=loads,
        burst=BURST_LOAD,
        sizes_rate=max(loads),
        rounds_rate=min(loads),
        unit=" ×",
        served=served,
        variations=REAL_VARIATIONS,
        sizes=REAL_SIZES,
        requests=REAL_REQUESTS,
        repeats=1,
        setting=f"{hardware.describe(context)}; {_last(stage, REAL_REQUESTS)} a run, at multiples (×) of the "
        f"{served:.3g} requests/s that fcfs-none serves; at most {SIZE} rows unless said",
    )


def _last(stage: Stage, requests: int) -> str:
    duration = stage.setting.duration
    return f"{requests} requests" if duration is None else f"{duration:g} s of arrivals"


def size_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of Figure 8, which the text tells in words."""
    where = "4.2, Fig. 8"
    jct = gain(lines, "ssjf-continuous", "ssjf-dynamic", "mean")
    below = all(value >= 0 for value in jct.values())
    rows = [claim("continuous batching has less JCT than dynamic", below, f"{chain(jct)} % less", where)]
    for mode in ("dynamic", "continuous"):
        gains = gain(lines, f"ssjf-{mode}", f"fcfs-{mode}", "mean")
        values = list(gains.values())
        shrink = f"ssjf-{mode}: JCT gains shrink with the batch size"
        rows.append(claim(shrink, values[-1] < values[0], f"{chain(gains)} %", where))
    return rows


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {"rates": rates, "burstiness": burstiness, "sizes": sizes, "rounds": rounds}
)
