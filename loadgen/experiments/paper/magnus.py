"""The experiments of Magnus (section IV): the main comparison and the ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from loadgen.experiments.paper import published
from loadgen.experiments.paper.gains import by_point, decrease, gain_rows, increase
from loadgen.experiments.paper.hardware import Hardware, times
from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.plan import Line, Plan, Rows, Run, scaled
from loadgen.experiments.paper.row import AnyRow, Claim, Row, Skipped, chain
from loadgen.experiments.paper.stage import Stage, limits
from loadgen.simulate.presets import V100_CHATGLM_6B
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits

BASELINES = ("vs", "ccb")
QUANTIZED = "vsq"
"""The baseline with weights of 4 bits, which no simulation can tell anything of."""
ABLATION = ("vs", "glp", "abp", "magnus")
SHARES, LOADS = (1.5, 2.0, 4.0, 8.0), (2.0, 6.0)
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
    """By point."""
    setting: str
    larger: Machine | None = None
    """Executors with memory for the batches of vsq; None where it cannot run."""


def main(stage: Stage) -> Plan:
    """Figures 10 and 11."""
    place = _place(stage)
    if place.larger is not None:
        return _plan(place, "Figs. 10 and 11", (*BASELINES, QUANTIZED, "magnus"), main_rows)
    published_gain = published.MAGNUS_OVER[QUANTIZED].throughput
    skipped = Skipped(
        f"magnus over {QUANTIZED}: throughput", "4-bit weights need a real engine: --real", published_gain
    )
    return _plan(place, "Figs. 10 and 11", (*BASELINES, "magnus"), main_rows, [skipped])


def ablation(stage: Stage) -> Plan:
    """Figures 12 and 13."""
    return _plan(_place(stage), "ablation, Figs. 12 and 13", ABLATION, ablation_rows)


def _plan(place: Place, figures: str, names: Sequence[str], rows: Rows, skipped: Sequence[Skipped] = ()) -> Plan:
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
    machine, seconds = scaled(V100_CHATGLM_6B, stage.setting.scale), stage.setting.seconds
    whole = V100_CHATGLM_6B.workers
    rates: Sequence[float] | None = stage.setting.rates
    described = "as given" if rates else f"{', '.join(f'{share:g}' for share in SHARES)} × what vs serves"
    if rates is None:
        served = stage.capacity("vs", machine, limits(), SATURATING * FIXED * machine.workers)
        rates = [share * served * whole / machine.workers for share in SHARES]
    return Place(
        "Magnus",
        machine,
        limits(),
        {f"{rate:.3g}/s": stage.load(rate * machine.workers / whole, seconds) for rate in rates},
        f"{machine.workers} × ChatGLM-6B on a V100 32 GB, {seconds:g} s of Poisson arrivals; rates, which the text "
        f"does not name, are {described}, for {whole} workers; predictions are off by {published.MAGNUS_RMSE} tokens "
        "(RMSE), as those for ChatGLM-6B in Table II",
    )


def _real(stage: Stage, hardware: Hardware) -> Place:
    """Memory as in the paper in rows, all its lengths scaled."""
    context, loads = hardware.context(), hardware.loads or LOADS
    machine = hardware.machine(context, FIXED)
    # Wasted memory accesses are tokens times tokens, so their bound shrinks as the square of lengths.
    threshold = max(1, round(limits().wma_threshold * hardware.length_scale**2))
    bounds = limits(group_tokens=hardware.chunk_tokens, wma_threshold=threshold)
    served = stage.capacity("vs", machine, bounds, PROBE * FIXED * machine.workers)
    return Place(
        "Magnus, on the engine",
        machine,
        bounds,
        {f"{load:g} ×": stage.load(load * served, hardware.seconds) for load in loads},
        f"{hardware.describe(context)}; {hardware.seconds:g} s of Poisson arrivals at {times(loads, served, 'vs')}; "
        f"K and V for {FIXED} rows of the greatest length on each ({FIXED_QUANTIZED} for {QUANTIZED}, with weights in "
        f"int4); Φ {threshold}; predictions are as wrong, in proportion, as by {published.MAGNUS_RMSE} tokens (RMSE) "
        "before lengths were scaled",
        hardware.machine(context, FIXED_QUANTIZED),
    )


def main_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Rows of section IV-B: magnus against its baselines, vsq among them where it has run."""
    ran = {line.strategy for line in lines}
    rows: list[AnyRow] = []
    for name, gains in published.MAGNUS_OVER.items():
        rows += gain_rows(lines, "magnus", name, gains) if name in ran else ()
    rows += gain_rows(lines, "magnus", "vs", published.MAGNUS_OVER_ALL)
    for name in (*BASELINES, QUANTIZED):
        if name in ran:
            valid, total = (increase(lines, "magnus", name, figure) for figure in ("valid_tokens", "total_tokens"))
            rows += [
                Row(f"magnus over {name}: valid tokens a second", valid, published.MAGNUS_VALID_TOKENS),
                Row(f"magnus over {name}: all tokens a second", total, published.MAGNUS_TOTAL_TOKENS),
            ]
    throughput = {point: trial.throughput for point, trial in by_point(lines, "magnus").items()}
    grows = all(one <= other for one, other in pairwise(throughput.values()))
    return [*rows, Claim("magnus's throughput rises with the rate", grows, chain(throughput, 2), "IV-B, Fig. 11a")]


def ablation_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Rows of section IV-C: each step of the ablation."""
    total = increase(lines, "glp", "vs", "total_tokens")
    same_tokens = all(abs(value) < 10 for value in total.values())
    throughput = increase(lines, "magnus", "abp", "throughput")
    same_throughput = all(abs(value) < 5 for value in throughput.values())
    return [
        Row(
            "glp over vs: valid tokens a second",
            increase(lines, "glp", "vs", "valid_tokens"),
            published.GLP_VALID_TOKENS,
        ),
        Claim("glp has almost the total tokens of vs (10 %)", same_tokens, f"{chain(total)} % more", "IV-C, Fig. 12"),
        Row(
            "abp over glp: all tokens a second",
            increase(lines, "abp", "glp", "total_tokens"),
            published.ABP_TOTAL_TOKENS,
        ),
        *gain_rows(lines, "abp", "glp", published.ABP_OVER_GLP),
        Row(
            "magnus over abp: mean response time less by",
            decrease(lines, "magnus", "abp", "mean"),
            published.HRRN_MEAN,
        ),
        Row(
            "magnus over abp: 95 % response time less by",
            decrease(lines, "magnus", "abp", "tail"),
            published.HRRN_TAIL,
        ),
        Claim(
            "magnus has the throughput of abp (5 %)", same_throughput, f"{chain(throughput)} % more", "IV-C, Fig. 13a"
        ),
    ]


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType({"main": main, "ablation": ablation})
