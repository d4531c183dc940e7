"""The experiments of SSJF (section 4.2): JCT and throughput against rate, burstiness, batch size and round.

The text names neither numbers of requests nor most rates and variations; those of the simulator that the authors
publish are used.
"""

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
SIZE = 4
"""Rows of a batch (4.2)."""
REPEATS = 20
"""Runs of each point in the simulator."""
PROBE = 12
"""Requests, all there from the start, that show what `fcfs-none` serves."""
ROOM = 2
"""Times the memory that rows of the greatest length need: the paper tells of none that ran short."""
LONGEST = 512
"""Answers are shorter than this (4.3, note on data processing)."""
ACCURACY, CUTS = 0.615, (0.25, 0.5, 0.75, 0.99)
"""Accuracy of the paper's predictor (4.3, Table 2, REG (L1)), and the quantiles of lengths that part its classes, as
the authors' program has them (`preprocess_dataset.py`)."""
ROUND_ACCURACY: Mapping[str, float] = MappingProxyType({"round 1": 0.619, "round 2": 0.60})
"""The best and the worst of that accuracy by conversation round (4.3, Fig. 9)."""
RIGHT = f"{ACCURACY:.1%} (Table 2)"
"""Predictions that fall into the right class, where nothing else is said."""
SHOWN = ("mean", "tail", "answered_meanwhile", "first_quarter", "throughput", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points of all experiments, in the simulator or on the engine."""

    title: str
    unit: str
    """The name of the unit of rates."""
    rates: tuple[float, ...]
    burst: float
    """The rate of the experiment on burstiness."""
    sizes_rate: float
    rounds_rate: float
    variations: tuple[float, ...]
    """Coefficients of variation of the gaps between arrivals."""
    sizes: tuple[int, ...]
    requests: int
    sorted_gaps: bool = False
    """Whether gaps between bursty arrivals come sorted, the shortest first."""
    throughput: str = "answered_meanwhile"
    """The figure that stands for the text's throughput, which it does not define."""
    counting: str = "throughput, which the text does not define, counts requests answered before the last one comes"


SIMULATED = Sweep(
    title="SSJF",
    unit="/s",
    rates=(1.0, 2.0, 5.0, 10.0),
    burst=0.19,
    sizes_rate=10.0,
    rounds_rate=5.0,
    variations=(1.0, 2.5, 4.0, 5.5),
    sizes=(1, 2, 4, 8),
    requests=50,
)
AUTHORS = replace(
    SIMULATED,
    title="SSJF, as the authors count",
    burst=0.03,
    sorted_gaps=True,
    throughput="first_quarter",
    counting="as in the authors' program, throughput is that of the first quarter to be answered, and gaps between "
    "arrivals of the gamma process come sorted, the shortest first",
)
REAL = Sweep(
    title="SSJF, on the engine",
    unit=" ×",  # multiples of what `fcfs-none` serves
    rates=(4.0, 16.0),
    burst=0.6,
    sizes_rate=16.0,
    rounds_rate=4.0,
    variations=(1.0, 4.0),
    sizes=(2, 8),
    requests=30,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Executors and load of the experiments: the paper's in the simulator, or what fits on the engine."""

    sweep: Sweep
    machine: Callable[[int], Machine]
    """By the rows of a batch."""
    group_tokens: int
    served: float
    """Requests a second of the unit of rates."""
    repeats: int
    setting: str

    def named(self, rate: float) -> str:
        return f"{rate:g}{self.sweep.unit}"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a sweep."""

    name: str
    rate: float
    variation: float = 1.0
    size: int = SIZE
    prediction: Prediction | None = None
    """The predictor; None: one as good as in Table 2."""
    sorted_gaps: bool = False


def rates(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figures 4 and 6."""
    place = _place(stage, sweep)
    points = [Point(place.named(rate), rate) for rate in place.sweep.rates]
    return _plan(stage, place, "rates, Figs. 4 and 6", points, MODES, _rows(place, "rates"))


def burstiness(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figures 5 and 7."""
    place = _place(stage, sweep)
    burst, rows = place.sweep.burst, _rows(place, "burstiness")
    points = [Point(f"CV {one:g}", burst, one, sorted_gaps=place.sweep.sorted_gaps) for one in place.sweep.variations]
    return _plan(stage, place, f"burstiness at {place.named(burst)}, Figs. 5 and 7", points, MODES, rows)


def sizes(stage: Stage) -> Plan:
    """Figure 8."""
    place = _place(stage, SIMULATED)
    rate = place.sweep.sizes_rate
    points = [Point(f"{size} rows", rate, size=size) for size in place.sweep.sizes]
    title = f"batch sizes at {place.named(rate)}, Fig. 8"
    return _plan(stage, place, title, points, MODES[1:], size_rows, sweeping=True)


def rounds(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figure 9, as far as the text tells how rounds differ: in how well their answers' lengths are predicted."""
    place, lengths = _place(stage, sweep), outputs(stage.pool.lengths)
    rate = place.sweep.rounds_rate
    sigmas = {name: sigma_for_accuracy(lengths, CUTS, accuracy) for name, accuracy in ROUND_ACCURACY.items()}
    points = [
        Point(f"{name}, {ROUND_ACCURACY[name]:.1%} right", rate, prediction=Prediction(sigma))
        for name, sigma in sigmas.items()
    ]
    title, rows = f"conversation rounds at {place.named(rate)}, Fig. 9", _rows(place, "rounds")
    return _plan(stage, place, title, points, MODES, rows, right="the share that each round's name tells")


def _rows(place: Place, table: str) -> Rows:
    return partial(sjf_rows, table=table, throughput=place.sweep.throughput)


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
        f"{place.setting}; predictions fall into the right one of {len(CUTS) + 1} classes in {right}; "
        f"{place.sweep.counting}"
    )
    return Plan(f"{place.sweep.title}: {title}", setting, SHOWN, runs, rows, sweeping=sweeping)


def _load(stage: Stage, place: Place, point: Point) -> Load:
    rate, duration = point.rate * place.served, stage.setting.duration
    count = place.sweep.requests if duration is None else max(2, round(rate * duration))
    return Load(rate, count, point.variation**-2, stage.setting.seed, point.sorted_gaps)


def _limits(size: int, group_tokens: int) -> Limits:
    return limits(group_tokens=group_tokens, max_batch_size=size, prefill_ahead=0)


def _place(stage: Stage, sweep: Sweep) -> Place:
    if stage.hardware is not None:
        return _real(stage, stage.hardware)
    repeats = max(1, round(REPEATS * stage.setting.scale))
    setting = (
        f"0.1 s a request and 0.02 s a token, 1 executor, at most {SIZE} rows unless said; means of {repeats} "
        f"runs of {_last(stage, sweep)}, as in the simulator that the authors publish"
    )
    sweep = replace(sweep, rates=stage.setting.rates or sweep.rates)
    return Place(sweep, lambda size: replace(SSJF, max_num_seqs=size), GROUP_TOKENS, 1.0, repeats, setting)


def _real(stage: Stage, hardware: Hardware) -> Place:
    """Batches and numbers of requests as in the paper, lengths scaled."""
    context, loads = hardware.context(LONGEST), hardware.loads or REAL.rates

    def machine(size: int) -> Machine:
        return hardware.machine(context, ROOM * size, slots=size)

    served = stage.capacity("fcfs-none", machine(SIZE), _limits(SIZE, hardware.chunk_tokens), PROBE)
    setting = (
        f"{hardware.describe(context)}; {_last(stage, REAL)} a run, at multiples (×) of the "
        f"{served:.3g} requests/s that fcfs-none serves; at most {SIZE} rows unless said"
    )
    sweep = replace(REAL, rates=loads, sizes_rate=max(loads), rounds_rate=min(loads))
    return Place(sweep, machine, hardware.chunk_tokens, served, 1, setting)


def _last(stage: Stage, sweep: Sweep) -> str:
    duration = stage.setting.duration
    return f"{sweep.requests} requests" if duration is None else f"{duration:g} s of arrivals"


def size_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of Figure 8, which the text tells in words."""
    where = "4.2, Fig. 8"
    jct = gain(lines, "ssjf-continuous", "ssjf-dynamic", "mean")
    below = all(value >= 0 for value in jct.values())
    rows = [claim("continuous batching has less JCT than dynamic", below, f"{chain(jct)} % less", where)]
    for mode in MODES[1:]:
        gains = gain(lines, f"ssjf-{mode}", f"fcfs-{mode}", "mean")
        values = list(gains.values())
        shrink = f"ssjf-{mode}: JCT gains shrink with the batch size"
        rows.append(claim(shrink, values[-1] < values[0], f"{chain(gains)} %", where))
    return rows


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        "rates": rates,
        "burstiness": burstiness,
        "sizes": sizes,
        "rounds": rounds,
        "rates-authors": partial(rates, sweep=AUTHORS),
        "burstiness-authors": partial(burstiness, sweep=AUTHORS),
        "rounds-authors": partial(rounds, sweep=AUTHORS),
    }
)
"""Experiments by name; those as the authors count are for the simulator only."""
