"""SCLS's experiments on the real engine: batches and memory as in the paper in rows, lengths and slices scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from loadgen.experiments.paper.load import LONGEST, Load
from loadgen.experiments.paper.real.ground import Ground, times
from loadgen.experiments.paper.real.plan import Plan, Rows, Run
from loadgen.experiments.paper.scls import ABLATION, ANEW, HF, SHOWN
from loadgen.experiments.paper.scls_rows import (
    KEPT,
    READ_ANEW,
    SLICES_OF,
    WORKERS_OF,
    ablation_rows,
    keeping_rows,
    main_rows,
    slice_rows,
    worker_rows,
)
from loadgen.experiments.paper.stage import Stage, limits, missing
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits
from scheduler.serving_time.bilinear import Bilinear

LOADS = (2.0, 4.0)
"""Rates, as multiples of what `sls` serves; the greatest one is that of all experiments but the main one."""
PROBE = 5
"""Batches of `sls` an executor, all there from the start, that show what it serves."""
BASELINES = ("sls", "ils")
SLICE = 128
SLICES = (32, 128, 512)
"""Decode iterations, of the seven of Figure 18, before they are scaled."""


def main(stage: Stage, ground: Ground) -> Plan:
    """Figures 12 to 14 and 17, on one engine with both baselines."""
    names = (*BASELINES, "scls")
    served = _served(stage, ground)
    runs = [
        Run(name, f"{load:g} ×", _machine(ground), _load(stage, ground, load * served), _limits(ground))
        for load in _loads(ground)
        for name in stage.known(names)
    ]
    return _plan(
        stage, ground, served, "Figs. 12, 13, 14 and 17", names, runs, lambda lines: main_rows(lines, "hf", BASELINES)
    )


def ablation(stage: Stage, ground: Ground) -> Plan:
    """Figures 15 and 16."""
    served, load = _served(stage, ground), max(_loads(ground))
    runs = [
        Run(name, f"{load:g} ×", _machine(ground), _load(stage, ground, load * served), _limits(ground))
        for name in stage.known(ABLATION)
    ]
    return _plan(stage, ground, served, "ablation, Figs. 15 and 16", ABLATION, runs, ablation_rows)


def slices(stage: Stage, ground: Ground) -> Plan:
    """Figures 18 to 21, at some of their lengths."""
    served = _served(stage, ground)
    load = _load(stage, ground, max(_loads(ground)) * served)
    runs = [
        Run(name, f"{SLICES_OF}{length}", _machine(ground), load, _limits(ground, length))
        for length in dict.fromkeys(ground.tokens(one) for one in SLICES)
        for name in stage.known(("scls",))
    ]
    return _plan(stage, ground, served, "slice lengths, Figs. 18 to 21", ("scls",), runs, slice_rows, sweeping=True)


def keeping(stage: Stage, ground: Ground) -> Plan:
    """No figure: K and V that stay in host memory between slices where the profile says that this takes less time."""
    served = _served(stage, ground)
    load = _load(stage, ground, max(_loads(ground)) * served)
    runs = [
        Run(name, point, _machine(ground), load, _limits(ground, recompute=point == READ_ANEW))
        for point in (READ_ANEW, KEPT)
        for name in stage.known(("scls",))
    ]
    title, kv = "K and V kept between slices", _prices(ground.cost)
    return _plan(stage, ground, served, title, ("scls",), runs, keeping_rows, sweeping=True, kv=kv)


def _prices(cost: Bilinear) -> str:
    """Between what is decided, for the reader."""
    return (
        f"; K and V cost {1e3 * cost.c1:.3g} ms a token and {1e3 * cost.c0:.3g} ms a row to copy, and "
        f"{1e3 * cost.p1:.3g} ms a token and {1e3 * cost.p2:.3g} ms a row to read anew"
    )


def workers(stage: Stage, ground: Ground) -> Plan:
    """Figure 22: the whole load on fewer executors, each with as many threads as ever."""
    served = _served(stage, ground)
    load = _load(stage, ground, max(_loads(ground)) * served)
    runs = [
        Run(name, f"{WORKERS_OF}{count}", _machine(ground, count), load, _limits(ground))
        for count in _counts(ground.executors)
        for name in stage.known(("scls",))
    ]
    return _plan(stage, ground, served, "workers, Fig. 22", ("scls",), runs, worker_rows, sweeping=True)


def _counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and all there are."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _plan(
    stage: Stage,
    ground: Ground,
    served: float,
    figures: str,
    names: Sequence[str],
    runs: Sequence[Run],
    rows: Rows,
    sweeping: bool = False,
    kv: str = ANEW,
) -> Plan:
    title = f"SCLS, on the engine: {figures}"
    return Plan(title, _setting(ground, served, kv), SHOWN, runs, rows, missing(stage, names), sweeping)


def _loads(ground: Ground) -> tuple[float, ...]:
    return ground.loads or LOADS


def _machine(ground: Ground, executors: int | None = None) -> Machine:
    return ground.machine(ground.context(), HF.fixed, executors=executors)


def _served(stage: Stage, ground: Ground) -> float:
    """Requests a second of the baseline."""
    return stage.capacity("sls", _machine(ground), _limits(ground), PROBE * HF.fixed * ground.executors)


def _load(stage: Stage, ground: Ground, rate: float) -> Load:
    return Load(rate, max(2, round(rate * ground.seconds)), seed=stage.setting.seed)


def _limits(ground: Ground, slice_length: int | None = None, recompute: bool = True) -> Limits:
    return limits(
        group_tokens=ground.chunk_tokens,
        slice_length=slice_length or ground.tokens(SLICE),
        max_batch_size=HF.fixed,
        min_interval=_interval(ground),
        recompute=recompute,
    )


def _interval(ground: Ground) -> float:
    """Γ in seconds: as large a part of the longest slice of a fixed batch as in the paper, on either engine."""
    cost = HF.machine.cost
    assert isinstance(cost, Bilinear), "the papers' machines have bilinear serving times"
    theirs = cost.serve(HF.fixed, LONGEST, SLICE)
    ours = ground.cost.serve(HF.fixed, ground.tokens(LONGEST), ground.tokens(SLICE))
    return HF.interval * ours / theirs


def _setting(ground: Ground, served: float, kv: str) -> str:
    return (
        f"{ground.told(ground.context())}; {ground.seconds:g} s of Poisson arrivals at "
        f"{times(_loads(ground), served, 'sls')}, the greatest where there is one rate only; K and V for {HF.fixed} "
        f"rows of the greatest length on each; Γ {_interval(ground):.2g} s, λ 0.5, slices of {ground.tokens(SLICE)} "
        f"unless said{kv}; ils is published on DeepSpeed, all else on transformers"
    )


EXPERIMENTS: Mapping[str, Callable[[Stage, Ground], Plan]] = MappingProxyType(
    {"main": main, "ablation": ablation, "slices": slices, "workers": workers, "keeping": keeping}
)
