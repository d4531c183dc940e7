"""The experiments of SCLS (section 5): the main comparison, the ablation, slice lengths and numbers of workers; and
what it brings to keep K and V between slices, which its authors are trying (section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from loadgen.experiments.paper.hardware import Hardware, times
from loadgen.experiments.paper.load import LONGEST, Load
from loadgen.experiments.paper.plan import Plan, Rows, Run, scaled
from loadgen.experiments.paper.scls.rows import (
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
from loadgen.experiments.paper.stage import Stage, limits
from loadgen.experiments.paper.trial import bilinear
from loadgen.simulate.node import Machine
from loadgen.simulate.presets import A100_LLAMA2_13B_DS, A100_LLAMA2_13B_HF
from scheduler.batching.batcher import Limits
from scheduler.strategy import STRATEGIES

ABLATION = ("sls", "so", "pm", "ab", "lb", "scls")
RATES, RATE = (10.0, 15.0, 20.0, 25.0), 20.0
"""Requests a second of the main experiment and of all others, in the simulator."""
LOADS = (3.0, 8.0)
"""Rates on the engine, as multiples of what `sls` serves; the greatest one is that of all but the main experiment."""
PROBE = 5
"""Batches of `sls` an executor, all there from the start, that show what it serves."""
INPUT_SCALE = 0.25
"""Prompts of CodeFuse to those of Azure's trace: an assumption, since the paper does not tell its lengths. With it most
of its figures come out; with Azure's own prompts they do not."""
SLICE = 128
SLICES, REAL_SLICES = (16, 32, 64, 128, 256, 512, 1024), (32, 128, 512)
"""Decode iterations in the simulator, and those of them that are tried on the engine, before they are scaled."""
WORKERS = (1, 2, 4, 8)
SLICE_MEMORY = "slice"
"""The rule of memory of strategies that slice."""
COPY = 2 * 0.819e6 / 25e9
"""Seconds in which a token's K and V go to host memory and come back: 0.8 MB for LLaMA2-13B (40 layers of 5,120 numbers
of 2 bytes, twice), at what of the 32 GB/s of PCIe 4.0 x16 is left each way. The paper has no such figure."""
SHOWN = (
    "throughput", "mean", "tail", "batch_size", "pad", "invalid", "slices", "few_slices", "early_returns", "imbalance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Backend:
    """An inference engine of the paper."""

    key: str
    title: str
    machine: Machine
    fixed: int
    """Rows of the batches of sls, so and pm (5.1, 5.4)."""
    interval: float
    """Γ in seconds (5.1)."""
    baselines: tuple[str, ...]
    memory: str = SLICE_MEMORY
    """The rule that says how many rows of a slice fit (4.3)."""


HF = Backend("hf", "transformers", A100_LLAMA2_13B_HF, 16, 6.0, ("sls",))
DS = Backend("ds", "DeepSpeed", A100_LLAMA2_13B_DS, 12, 3.0, ("sls", "ils", "ils-padded"), memory="deepspeed")


@dataclass(frozen=True, slots=True)
class Place:
    """Executors and load of the experiments: the paper's in the simulator, or what fits on the engine."""

    title: str
    key: str
    """The backend whose published figures stand beside what is measured."""
    baselines: tuple[str, ...]
    machine: Machine
    limits: Limits
    loads: Mapping[str, Load]
    """Loads of the main experiment, by point."""
    point: str
    load: Load
    """The load of all other experiments."""
    slices: Sequence[int]
    workers: Sequence[int]
    whole: Load
    """The load for the greatest number of workers."""
    copying: Machine
    """Executors on which copying K and V takes time."""
    prices: str
    """A phrase that tells how much time that is."""
    setting: str
    memory: str = SLICE_MEMORY
    """The rule that says how many rows of a slice fit."""

    def run(
        self, name: str = "scls", point: str | None = None, machine: Machine | None = None, **bounds: object
    ) -> Run:
        """A strategy under the load of all but the main experiment, with what differs from the others."""
        changed = replace(self.limits, **bounds)  # type: ignore[arg-type]
        memory = self.memory if STRATEGIES[name].memory == SLICE_MEMORY else None
        return Run(name, point or self.point, machine or self.machine, self.load, changed, memory=memory)

    def plan(
        self,
        figures: str,
        runs: Sequence[Run],
        rows: Rows,
        sweeping: bool = False,
        kept: str = "; K and V are read anew each slice",
    ) -> Plan:
        return Plan(f"{self.title}: {figures}", self.setting + kept, SHOWN, runs, rows, sweeping=sweeping)


def main(place: Place) -> Plan:
    """Figures 12 to 14 and 17."""
    runs = [
        replace(place.run(name, point), load=load)
        for point, load in place.loads.items()
        for name in (*place.baselines, "scls")
    ]
    return place.plan("Figs. 12, 13, 14 and 17", runs, partial(main_rows, backend=place.key))


def ablation(place: Place) -> Plan:
    """Figures 15 and 16."""
    return place.plan("ablation, Figs. 15 and 16", [place.run(name) for name in ABLATION], ablation_rows)


def slices(place: Place) -> Plan:
    """Figures 18 to 21."""
    runs = [place.run(point=f"{SLICES_OF}{length}", slice_length=length) for length in place.slices]
    return place.plan("slice lengths, Figs. 18 to 21", runs, slice_rows, sweeping=True)


def workers(place: Place) -> Plan:
    """Figure 22: the whole load on fewer workers, each as fast as ever."""
    runs = [
        replace(
            place.run(point=f"{WORKERS_OF}{count}", machine=replace(place.machine, workers=count)), load=place.whole
        )
        for count in place.workers
    ]
    return place.plan("workers, Fig. 22", runs, worker_rows, sweeping=True)


def keeping(place: Place) -> Plan:
    """No figure: K and V that stay in host memory between slices where the cost model says that this takes less time;
    the authors "are also trying" it (section 7)."""
    runs = [place.run(point=point, machine=place.copying, recompute=point == READ_ANEW) for point in (READ_ANEW, KEPT)]
    return place.plan("K and V kept between slices", runs, keeping_rows, sweeping=True, kept=place.prices)


def _simulated(stage: Stage, backend: Backend) -> Place:
    """The paper's executors, or a share of them under the same share of the load."""
    machine, seconds = scaled(backend.machine, stage.setting.scale), stage.seconds
    share = machine.workers / backend.machine.workers
    return Place(
        f"SCLS on {backend.title}",
        backend.key,
        backend.baselines,
        machine,
        limits(slice_length=SLICE, max_batch_size=backend.fixed, min_interval=backend.interval, recompute=True),
        {f"{rate:g}/s": stage.load(rate * share) for rate in stage.setting.rates or RATES},
        f"{RATE:g}/s",
        stage.load(RATE * share),
        SLICES,
        WORKERS,
        stage.load(RATE),
        replace(machine, cost=replace(bilinear(machine), c1=COPY)),
        f"; K and V cost {1e6 * COPY:.0f} µs a token to copy",
        f"{machine.workers} × LLaMA2-13B with {backend.title} on an A100 80 GB, {seconds:g} s of Poisson arrivals; "
        f"rates are for {backend.machine.workers} workers; Γ {backend.interval:g} s, λ 0.5, slices of {SLICE} unless "
        "said",
        backend.memory,
    )


def _real(stage: Stage, hardware: Hardware) -> Place:
    """Batches and memory as in the paper in rows, lengths and slices scaled; all baselines on one engine."""
    rows = HF.machine.capacity_tokens // HF.machine.context_length
    machine, slice_length = hardware.machine(hardware.context(), rows), hardware.tokens(SLICE)
    loads = hardware.loads or LOADS
    # Γ is as large a part of the longest slice of a fixed batch as in the paper.
    theirs = bilinear(HF.machine).serve(HF.fixed, LONGEST, SLICE)
    interval = HF.interval * hardware.cost.serve(HF.fixed, hardware.tokens(LONGEST), slice_length) / theirs
    bounds = limits(
        group_tokens=hardware.chunk_tokens,
        slice_length=slice_length,
        max_batch_size=HF.fixed,
        min_interval=interval,
        recompute=True,
    )
    served = stage.capacity("sls", machine, bounds, PROBE * HF.fixed * hardware.executors)
    by_point = {f"{load:g} ×": stage.load(load * served) for load in loads}
    greatest = f"{max(loads):g} ×"
    cost = hardware.cost
    return Place(
        "SCLS, on the engine",
        HF.key,
        DS.baselines,
        machine,
        bounds,
        by_point,
        greatest,
        by_point[greatest],
        tuple(dict.fromkeys(hardware.tokens(one) for one in REAL_SLICES)),
        sorted({*(2**power for power in range(hardware.executors.bit_length())), hardware.executors}),
        by_point[greatest],
        machine,
        f"; K and V cost {1e3 * cost.c1:.3g} ms a token and {1e3 * cost.c0:.3g} ms a row to copy, and "
        f"{1e3 * cost.p1:.3g} ms a token and {1e3 * cost.p2:.3g} ms a row to read anew",
        f"{hardware.describe(hardware.context())}; {hardware.amount}, Poisson arrivals at "
        f"{times(loads, served, 'sls')}, the greatest where there is one rate only; K and V for {rows} rows of the "
        f"greatest length on each; Γ {interval:.2g} s, λ 0.5, slices of {slice_length} unless said; ils is published "
        "on DeepSpeed, all else on transformers",
    )


def _build(stage: Stage, experiment: Callable[[Place], Plan], backend: Backend) -> Plan:
    return experiment(_simulated(stage, backend) if stage.hardware is None else _real(stage, stage.hardware))


NAMED = {"main": main, "ablation": ablation, "slices": slices, "workers": workers, "keeping": keeping}

EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        f"{name}{suffix}": partial(_build, experiment=experiment, backend=backend)
        for suffix, backend in (("", HF), ("-ds", DS))
        for name, experiment in NAMED.items()
    }
)
"""Experiments by name; those with DeepSpeed's speeds are for the simulator only."""
