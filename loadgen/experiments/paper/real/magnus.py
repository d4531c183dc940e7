"""Magnus's experiments on the real engine: memory as in the paper in rows, all its lengths scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from loadgen.experiments.paper import published
from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.magnus import ABLATION, BASELINES, FIXED, QUANTIZED, SHOWN, ablation_rows, main_rows
from loadgen.experiments.paper.real.ground import Ground, times
from loadgen.experiments.paper.real.plan import Plan, Rows, Run
from loadgen.experiments.paper.stage import Stage, limits, missing
from scheduler.batching.batcher import Limits

LOADS = (2.0, 6.0)
"""Rates, as multiples of what `vs` serves."""
PROBE = 10
"""Batches of `vs` an executor, all there from the start, that show what it serves."""
FIXED_QUANTIZED = 10
"""Rows of the batches of vsq, which its smaller weights leave memory for (IV-A)."""


def main(stage: Stage, ground: Ground) -> Plan:
    """Figures 10 and 11, with vsq."""
    return _plan(stage, ground, "Magnus, on the engine: Figs. 10 and 11", (*BASELINES, QUANTIZED, "magnus"), main_rows)


def ablation(stage: Stage, ground: Ground) -> Plan:
    """Figures 12 and 13."""
    return _plan(stage, ground, "Magnus, on the engine: ablation, Figs. 12 and 13", ABLATION, ablation_rows)


def _plan(stage: Stage, ground: Ground, title: str, names: Sequence[str], rows: Rows) -> Plan:
    context, bounds = ground.context(), _limits(ground)
    machine, larger = ground.machine(context, FIXED), ground.machine(context, FIXED_QUANTIZED)
    served = stage.capacity("vs", machine, bounds, PROBE * FIXED * machine.workers)
    points = {f"{load:g} ×": _load(stage, ground, load * served) for load in ground.loads or LOADS}
    runs = [
        Run(name, point, larger if name == QUANTIZED else machine, load, bounds)
        for point, load in points.items()
        for name in stage.known(names)
    ]
    return Plan(title, _setting(ground, context, served, names), SHOWN, runs, rows, missing(stage, names))


def _load(stage: Stage, ground: Ground, rate: float) -> Load:
    return Load(rate, max(2, round(rate * ground.seconds)), seed=stage.setting.seed)


def _limits(ground: Ground) -> Limits:
    """Wasted memory accesses are tokens times tokens, so their bound shrinks as the square of lengths."""
    threshold = max(1, round(limits().wma_threshold * ground.length_scale**2))
    return limits(group_tokens=ground.chunk_tokens, wma_threshold=threshold)


def _setting(ground: Ground, context: int, served: float, names: Sequence[str]) -> str:
    quantized = f" ({FIXED_QUANTIZED} for {QUANTIZED}, with weights in int4)" if QUANTIZED in names else ""
    return (
        f"{ground.told(context)}; {ground.seconds:g} s of Poisson arrivals at "
        f"{times(ground.loads or LOADS, served, 'vs')}; K and V for {FIXED} rows of the greatest length on each"
        f"{quantized}; Φ {_limits(ground).wma_threshold}; predictions are as wrong, in proportion, as by "
        f"{published.MAGNUS_RMSE} tokens (RMSE) before lengths were scaled"
    )


EXPERIMENTS: Mapping[str, Callable[[Stage, Ground], Plan]] = MappingProxyType({"main": main, "ablation": ablation})
