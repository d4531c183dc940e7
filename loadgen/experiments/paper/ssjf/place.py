"""The executors, sweeps and points of SSJF's experiments, at the paper's scale or on the real engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.experiments.paper.hardware import REQUESTS, Hardware
from loadgen.experiments.paper.stage import GROUP_TOKENS, Stage, limits
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.presets import SSJF
from scheduler.batching.batcher import Limits

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
    rates=(3.0, 8.0),
    burst=0.6,
    sizes_rate=8.0,
    rounds_rate=3.0,
    variations=(1.0, 4.0),
    sizes=(2, 8),
    requests=REQUESTS,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Executors and load of the experiments: the paper's in the simulator, or what fits on the engine."""

    sweep: Sweep
    machine: Callable[[int], Machine]
    """Rows of a batch -> the executors that run batches of so many."""
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
    own_times: bool = False


def batch_limits(size: int, group_tokens: int) -> Limits:
    """Make the limits of batches of `size` rows."""
    return limits(group_tokens=group_tokens, max_batch_size=size, prefill_ahead=0)


def find_place(stage: Stage, sweep: Sweep) -> Place:
    """Build the place of a sweep: the paper's executors in the simulator, or those of the hardware."""
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

    served = stage.capacity("fcfs-none", machine(SIZE), batch_limits(SIZE, hardware.chunk_tokens), PROBE)
    setting = (
        f"{hardware.describe(context)}; {hardware.amount}, at multiples (×) of the "
        f"{served:.3g} requests/s that fcfs-none serves; at most {SIZE} rows unless said"
    )
    sweep = replace(REAL, requests=hardware.requests, rates=loads, sizes_rate=max(loads), rounds_rate=min(loads))
    return Place(sweep, machine, hardware.chunk_tokens, served, 1, setting)


def _last(stage: Stage, sweep: Sweep) -> str:
    duration = stage.setting.duration
    return f"{sweep.requests} requests" if duration is None else f"{duration:g} s of arrivals"
