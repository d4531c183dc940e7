"""Magnus's figures of serving: the case study (section II-E), the main comparison and the ablation (section IV)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from loadgen.experiments.paper.gains import by_point, gain, gain_rows, read_published
from loadgen.experiments.paper.hardware import Hardware, times
from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.magnus.estimator import learning, overhead
from loadgen.experiments.paper.magnus.tasks import correlations
from loadgen.experiments.paper.plan import Line, Plan, Rows, Run, scaled
from loadgen.experiments.paper.row import PERCENT, SECONDS, Published, Row, chain, claim, skip
from loadgen.experiments.paper.stage import Stage, limits
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.presets import V100_CHATGLM_6B
from loadgen.workload.lengths import Lengths
from scheduler.batching.batcher import Limits

BASELINES = ("vs", "ccb", "ccb-padded")
QUANTIZED = "vsq"
"""The baseline with weights of 4 bits, which no simulation can tell anything of."""
RMSE = 15.649
"""Tokens: the error of the paper's predictor for ChatGLM-6B (III-B, Table II, USIN)."""
ABLATION = ("vs", "glp", "abp", "magnus")
SHARES, LOADS = (3.0, 4.0, 6.0, 8.0), (3.0, 8.0)
"""The rates in the simulator and on the engine, as multiples of what `vs` serves: the text names none."""
SATURATING, PROBE = 50, 10
"""Requests that show what `vs` serves in the simulator and on the engine, in fixed batches an executor."""
FIXED, FIXED_QUANTIZED = 7, 10
"""Rows of the batches of vs, ccb and glp, and of vsq, which its smaller weights leave memory for (IV-A)."""
SHOWN = ("throughput", "mean", "tail", "valid_tokens", "total_tokens", "batch_size", "pad", "invalid")


@dataclass(frozen=True, slots=True)
class Place:
    """Executors and load of the experiments: the paper's in the simulator, or what fits on the engine."""

    title: str
    machine: Machine
    limits: Limits
    loads: Mapping[str, Load]
    """Point -> its load."""
    setting: str
    larger: Machine | None = None
    """Executors with memory for the batches of vsq; None where it cannot run."""


def case_study(stage: Stage) -> Plan:
    """Figure 6: three requests of about 1,000 tokens in and out, six of about 10 after each, on one executor."""
    large, small = Lengths(0.0, 1000, 1000), Lengths(0.0, 10, 10)
    pool = Pool((large, *6 * (small,)) * 3, "the case study's")
    machine, load = replace(V100_CHATGLM_6B, workers=1), Load(float("inf"), len(pool.lengths))
    runs = [Run(name, "all at once", machine, load, limits(), Prediction(0.0), pool) for name in ABLATION]
    setting = "1 × ChatGLM-6B on a V100 32 GB, whose two speeds are solved for from these two times: they are no test"
    return Plan("Magnus: case study, Fig. 6", setting, ("duration", *SHOWN[4:]), runs, case_rows)


def main(stage: Stage) -> Plan:
    """Figures 10 and 11."""
    place = _place(stage)
    names, skipped = [*BASELINES, QUANTIZED, "magnus"], []
    if place.larger is None:
        new, old, _, low, high, where = read_published("gains", "magnus-main")[0]
        said = Published(low, high, PERCENT, where)
        names.remove(QUANTIZED)
        skipped = [skip(f"{new} over {old}: throughput", "4-bit weights need a real engine: --real", said)]
    return _plan(place, "Figs. 10 and 11", names, main_rows, skipped)


def ablation(stage: Stage) -> Plan:
    """Figures 12 and 13."""
    return _plan(_place(stage), "ablation, Figs. 12 and 13", ABLATION, ablation_rows)


def _plan(place: Place, figures: str, names: Sequence[str], rows: Rows, skipped: Sequence[Row] = ()) -> Plan:
    runs = [
        Run(name, point, place.larger if name == QUANTIZED and place.larger else place.machine, load, place.limits)
        for point, load in place.loads.items()
        for name in names
    ]
    return Plan(f"{place.title}: {figures}", place.setting, SHOWN, runs, rows, skipped)


def _place(stage: Stage) -> Place:
    return _simulated(stage) if stage.hardware is None else _real(stage, stage.hardware)


def _simulated(stage: Stage) -> Place:
    """The paper's executors, or a share of them under the same share of the load."""
    machine, seconds = scaled(V100_CHATGLM_6B, stage.setting.scale), stage.seconds
    bounds = limits(wma_threshold=stage.setting.wma_threshold or limits().wma_threshold)
    whole = V100_CHATGLM_6B.workers
    rates: Sequence[float] | None = stage.setting.rates
    described = "as given" if rates else f"{', '.join(f'{share:g}' for share in SHARES)} × what vs serves"
    if rates is None:
        served = stage.capacity("vs", machine, bounds, SATURATING * FIXED * machine.workers)
        rates = [share * served * whole / machine.workers for share in SHARES]
    return Place(
        "Magnus",
        machine,
        bounds,
        {f"{rate:.3g}/s": stage.load(rate * machine.workers / whole) for rate in rates},
        f"{machine.workers} × ChatGLM-6B on a V100 32 GB, {seconds:g} s of Poisson arrivals; rates, which the text "
        f"does not name, are {described}, for {whole} workers; Φ {bounds.wma_threshold}; predictions are off by {RMSE} "
        "tokens (RMSE), as those for ChatGLM-6B in Table II",
    )


def _real(stage: Stage, hardware: Hardware) -> Place:
    """Memory as in the paper in rows, all its lengths scaled."""
    context, loads = hardware.context(), hardware.loads or LOADS
    machine = hardware.machine(context, FIXED)
    # Wasted memory accesses are tokens times tokens, so their bound shrinks as the square of lengths.
    threshold = stage.setting.wma_threshold or max(1, round(limits().wma_threshold * hardware.length_scale**2))
    bounds = limits(group_tokens=hardware.chunk_tokens, wma_threshold=threshold)
    served = stage.capacity("vs", machine, bounds, PROBE * FIXED * machine.workers)
    return Place(
        "Magnus, on the engine",
        machine,
        bounds,
        {f"{load:g} ×": stage.load(load * served) for load in loads},
        f"{hardware.describe(context)}; {hardware.amount}, Poisson arrivals at {times(loads, served, 'vs')}; "
        f"K and V for {FIXED} rows of the greatest length on each ({FIXED_QUANTIZED} for {QUANTIZED}, with weights in "
        f"int4); Φ {threshold}; predictions are as wrong, in proportion, as by {RMSE} tokens (RMSE) "
        "before lengths were scaled",
        hardware.machine(context, FIXED_QUANTIZED),
    )


def case_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section II-E."""
    trials = {line.strategy: line.trial for line in lines}
    return [
        Published(said, said, SECONDS, "II-E, Fig. 6").beside(f"{name}: serving time", {name: trials[name].duration})
        for name, said in (("vs", 242.0), ("magnus", 60.0))
    ]


def main_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section IV-B: magnus against its baselines, vsq among them where it has run."""
    throughput = {point: trial.throughput for point, trial in by_point(lines, "magnus").items()}
    grows = all(one <= other for one, other in pairwise(throughput.values()))
    claimed = claim("magnus's throughput rises with the rate", grows, chain(throughput, 2), "IV-B, Fig. 11a")
    return [*gain_rows(lines, "magnus-main"), claimed]


def ablation_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section IV-C: each step of the ablation."""
    valid, *others = gain_rows(lines, "magnus-ablation")
    tokens = _claim_same(lines, "glp has almost the total tokens of vs", "total_tokens", 10, "IV-C, Fig. 12")
    return [
        valid,
        tokens,
        *others,
        _claim_same(lines, "magnus has the throughput of abp", "throughput", 5, "IV-C, Fig. 13a"),
    ]


def _claim_same(lines: Sequence[Line], what: str, figure: str, within: float, where: str) -> Row:
    """The claim that the strategies at its begin and end have a figure within so many percent of each other."""
    words = what.split()
    differences = gain(lines, words[0], words[-1], figure)
    same = all(abs(value) < within for value in differences.values())
    return claim(f"{what} ({within:g} %)", same, f"{chain(differences)} % more", where)


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        "main": main,
        "ablation": ablation,
        "case-study": case_study,
        "correlations": correlations,
        "learning": learning,
        "overhead": overhead,
    }
)
"""Experiments by name; but for the first two they are for the simulator only."""
