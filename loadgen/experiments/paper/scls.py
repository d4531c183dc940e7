"""The experiments of SCLS (section 5): the main comparison, the ablation, slice lengths and numbers of workers; and
what it brings to keep K and V between slices, which its authors are trying (section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from loadgen.experiments.paper.load import Load
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
from loadgen.experiments.paper.stage import MINUTES_10, Experiment, Line, Stage, limits, missing, scaled
from loadgen.simulate.presets import A100_LLAMA2_13B_DS, A100_LLAMA2_13B_HF
from loadgen.simulate.simulation import Machine
from scheduler.batching.batcher import Limits
from scheduler.serving_time.bilinear import Bilinear

RATES = (10.0, 15.0, 20.0, 25.0)
RATE = 20.0
"""Of all experiments but the main one."""
ABLATION = ("sls", "so", "pm", "ab", "lb", "scls")
ANEW = ", K and V read anew each slice"
SLICES = (16, 32, 64, 128, 256, 512, 1024)
WORKERS = (1, 2, 4, 8)
COPY = 2 * 0.819e6 / 25e9
"""Seconds in which a token's K and V go to host memory and come back: 0.8 MB for LLaMA2-13B (40 layers of 5,120 numbers
of 2 bytes, twice), at what of the 32 GB/s of PCIe 4.0 x16 is left each way. The paper has no such figure."""
SHOWN = (
    "throughput", "mean", "tail", "batch_size", "pad", "invalid", "slices", "few_slices", "early_returns", "imbalance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Engine:
    """An inference engine of the paper."""

    key: str
    title: str
    machine: Machine
    fixed: int
    """Rows of the batches of sls, so and pm (5.1, 5.4)."""
    interval: float
    """Γ in seconds (5.1)."""
    baselines: tuple[str, ...]


HF = Engine("hf", "transformers", A100_LLAMA2_13B_HF, 16, 6.0, ("sls",))
DS = Engine("ds", "DeepSpeed", replace(A100_LLAMA2_13B_DS, max_num_seqs=28), 12, 3.0, ("sls", "ils"))
"""Its batches have 28 rows at most (Algorithm 2); that algorithm's lower bounds for long rows are the memory's here."""


def _limits(engine: Engine, slice_length: int = 128, recompute: bool = True) -> Limits:
    return limits(
        slice_length=slice_length, max_batch_size=engine.fixed, min_interval=engine.interval, recompute=recompute
    )


def main(stage: Stage, engine: Engine) -> Experiment:
    """Figures 12 to 14 and 17."""
    names = (*engine.baselines, "scls")
    rates = stage.setting.rates or RATES
    lines = [_run(stage, engine, name, rate) for rate in rates for name in stage.known(names)]
    return Experiment(
        f"SCLS on {engine.title}: Figs. 12, 13, 14 and 17",
        _setting(stage, engine),
        SHOWN,
        lines,
        [*missing(stage, names), *main_rows(lines, engine.key, engine.baselines)],
    )


def ablation(stage: Stage, engine: Engine) -> Experiment:
    """Figures 15 and 16."""
    lines = [_run(stage, engine, name, RATE) for name in stage.known(ABLATION)]
    return Experiment(
        f"SCLS on {engine.title}: ablation, Figs. 15 and 16",
        _setting(stage, engine),
        SHOWN,
        lines,
        [*missing(stage, ABLATION), *ablation_rows(lines)],
    )


def slices(stage: Stage, engine: Engine) -> Experiment:
    """Figures 18 to 21."""
    lines = [
        stage.run("scls", *_place(stage, engine, RATE), _limits(engine, length), f"{SLICES_OF}{length}")
        for length in SLICES
        if stage.has("scls")
    ]
    return Experiment(
        f"SCLS on {engine.title}: slice lengths, Figs. 18 to 21",
        _setting(stage, engine),
        SHOWN,
        lines,
        [*missing(stage, ("scls",)), *slice_rows(lines)],
    )


def keeping(stage: Stage, engine: Engine) -> Experiment:
    """No figure: K and V that stay in host memory between slices, which the authors "are also trying" (section 7)."""
    machine, load = _place(stage, engine, RATE)
    assert isinstance(machine.cost, Bilinear), "the papers' machines have bilinear serving times"
    copying = replace(machine, cost=replace(machine.cost, c1=COPY))
    lines = [
        stage.run("scls", copying, load, _limits(engine, recompute=point == READ_ANEW), point)
        for point in (READ_ANEW, KEPT)
        if stage.has("scls")
    ]
    return Experiment(
        f"SCLS on {engine.title}: K and V kept between slices",
        _setting(stage, engine, f"; K and V cost {1e6 * COPY:.0f} µs a token to copy"),
        SHOWN,
        lines,
        [*missing(stage, ("scls",)), *keeping_rows(lines)],
    )


def workers(stage: Stage, engine: Engine) -> Experiment:
    """Figure 22: the whole load on fewer workers."""
    lines = [
        stage.run(
            "scls", replace(engine.machine, workers=count), _load(stage, RATE), _limits(engine), f"{WORKERS_OF}{count}"
        )
        for count in WORKERS
        if stage.has("scls")
    ]
    rows = [*missing(stage, ("scls",)), *worker_rows(lines)]
    return Experiment(f"SCLS on {engine.title}: workers, Fig. 22", _setting(stage, engine), SHOWN, lines, rows)


def _run(stage: Stage, engine: Engine, name: str, rate: float) -> Line:
    return stage.run(name, *_place(stage, engine, rate), _limits(engine), f"{rate:g}/s")


def _place(stage: Stage, engine: Engine, rate: float) -> tuple[Machine, Load]:
    """As large a share of the machine as was asked for, under the same share of the load."""
    machine = scaled(engine.machine, stage.setting.scale)
    return machine, _load(stage, rate * machine.workers / engine.machine.workers)


def _load(stage: Stage, rate: float) -> Load:
    duration = stage.setting.duration or MINUTES_10
    return Load(rate, max(1, round(rate * duration)), seed=stage.setting.seed)


def _setting(stage: Stage, engine: Engine, kv: str = ANEW) -> str:
    machine = scaled(engine.machine, stage.setting.scale)
    duration = stage.setting.duration or MINUTES_10
    return (
        f"{machine.workers} × LLaMA2-13B with {engine.title} on an A100 80 GB, {duration:g} s of Poisson arrivals; "
        f"rates are for {engine.machine.workers} workers; Γ {engine.interval:g} s, λ 0.5, slices of 128 unless "
        f"said{kv}"
    )


EXPERIMENTS: Mapping[str, Callable[[Stage], Experiment]] = MappingProxyType(
    {
        name if engine is HF else f"{name}-ds": partial(build, engine=engine)
        for engine in (HF, DS)
        for name, build in {
            "main": main,
            "ablation": ablation,
            "slices": slices,
            "workers": workers,
            "keeping": keeping,
        }.items()
    }
)
