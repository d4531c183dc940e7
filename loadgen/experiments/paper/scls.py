"""SCLS's experiments (5): main comparison, ablation, slice lengths, workers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from engine.simulated.machine import Machine
from loadgen.experiments.paper.experiment import Experiment, Paper, Rows
from loadgen.experiments.paper.load import chat_pool
from loadgen.experiments.paper.row import PERCENT, PUBLISHED, PaperRuns, ReportRow, chain, rises
from loadgen.experiments.paper.trial import SLICE_MEMORY, TrialPoint, TrialStage, limits, shrink
from scheduler.serving_time.presets import A100_LLAMA2_13B_DS, A100_LLAMA2_13B_HF

ABLATION = ("sls", "so", "pm", "ab", "lb", "scls")
RATES, RATE = (10.0, 15.0, 20.0, 25.0), 20.0  # requests/s of the main experiment, and of others
# CodeFuse's prompts to Azure's: assumed, as the paper gives no lengths; with Azure's own most figures do not come out
INPUT_SCALE = 0.25
SLICE = 128
SLICES = (16, 32, 64, 128, 256, 512, 1024)
WORKERS = (1, 2, 4, 8)
SHOWN = (
    "throughput", "mean", "tail", "batch_size", "pad", "invalid", "slices", "few_slices", "early_returns", "imbalance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PaperEngine:
    key: str
    title: str
    machine: Machine
    fixed: int  # rows of sls, so and pm's batches (5.1, 5.4)
    interval: float  # Γ in seconds (5.1)
    baselines: tuple[str, ...]
    memory: str = SLICE_MEMORY  # how many rows of a slice fit (4.3)


HF = PaperEngine("hf", "transformers", A100_LLAMA2_13B_HF, 16, 6.0, ("sls",))
DS = PaperEngine("ds", "DeepSpeed", A100_LLAMA2_13B_DS, 12, 3.0, ("sls", "ils", "ils-padded"), memory="deepspeed")


def make_point(stage: TrialStage, backend: PaperEngine, at: str, rate: float = RATE, slices: int = SLICE) -> TrialPoint:
    """A rate for the whole machine, on the paper's executors or a share with its share of the load."""
    machine = shrink(backend.machine, stage.setting.scale)
    load = stage.load(rate * machine.workers / backend.machine.workers)
    bounds = limits(slice_length=slices, max_batch_size=backend.fixed, min_interval=backend.interval, recompute=True)
    return TrialPoint(at, machine, load, bounds, slices, slice_memory=backend.memory)


def _plan(
    stage: TrialStage, backend: PaperEngine, label: str, points: Sequence[TrialPoint], names: Sequence[str], rows: Rows
) -> Experiment:
    setting = (
        f"{shrink(backend.machine, stage.setting.scale).workers} × LLaMA2-13B with {backend.title} on an A100 80 GB, "
        f"{stage.seconds:g} s of Poisson arrivals; rates are for {backend.machine.workers} workers; "
        f"Γ {backend.interval:g} s, λ 0.5, slices of {SLICE} unless said; K and V are read anew each slice"
    )
    title = f"SCLS on {backend.title}: {label}"
    return Experiment(title, setting, SHOWN, points, names, rows, sweeping=len(names) == 1)


def main(stage: TrialStage, backend: PaperEngine) -> Experiment:
    """Figures 12 to 14 and 17."""
    points = [make_point(stage, backend, f"{rate:g}/s", rate) for rate in stage.setting.rates or RATES]
    rows = partial(main_rows, backend=backend.key)
    return _plan(stage, backend, "Figs. 12, 13, 14 and 17", points, (*backend.baselines, "scls"), rows)


def ablation(stage: TrialStage, backend: PaperEngine) -> Experiment:
    """Figures 15 and 16."""
    points = [make_point(stage, backend, f"{RATE:g}/s")]
    return _plan(stage, backend, "ablation, Figs. 15 and 16", points, ABLATION, ablation_rows)


def slices(stage: TrialStage, backend: PaperEngine) -> Experiment:
    """Figures 18 to 21."""
    points = [make_point(stage, backend, f"slices of {one}", slices=one) for one in SLICES]
    return _plan(stage, backend, "slice lengths, Figs. 18 to 21", points, ("scls",), slice_rows)


def workers(stage: TrialStage, backend: PaperEngine) -> Experiment:
    """Figure 22: the whole load on fewer workers."""
    one = replace(make_point(stage, backend, ""), load=stage.load(RATE))
    points = [
        replace(one, label=f"workers: {count}", x=count, machine=replace(one.machine, workers=count))
        for count in WORKERS
    ]
    return _plan(stage, backend, "workers, Fig. 22", points, ("scls",), worker_rows)


def main_rows(runs: PaperRuns, backend: str) -> list[ReportRow]:
    few = runs.read("scls", "few_slices").values()
    told, early = f"{min(few):.1f} to {max(few):.1f} %", runs.read("scls", "early_returns")
    majority = "the vast majority of requests needs at most three slices"
    return [
        *runs.gain_rows(PUBLISHED[f"scls-{backend}"]),
        _claim_fewer_invalid(runs),
        ReportRow.claim(majority, min(few) > 80, told, "5.2, Fig. 14a"),
        # "less than 1 %" of all
        ReportRow.beside("scls: batches that return early", early, 0, 1, PERCENT, "5.2, Fig. 14b"),
        _claim_balance(runs),
    ]


def _claim_fewer_invalid(runs: PaperRuns) -> ReportRow:
    what = "scls has far fewer invalid tokens than sls"
    if not (shares := [100 * share for share in runs.compare("scls", "sls", "invalid").values()]):
        return ReportRow.skip(what, "sls has none")
    return ReportRow.claim(what, max(shares) < 50, f"{min(shares):.0f} to {max(shares):.0f} % of them", "5.2, Fig. 13a")


def _claim_balance(runs: PaperRuns) -> ReportRow:
    spreads = {line.strategy: runs.read(line.strategy, "imbalance") for line in runs.lines}
    least = all(spread <= other[point] for other in spreads.values() for point, spread in spreads["scls"].items())
    told = f"mean STD in s: {chain({name: fmean(spread.values()) for name, spread in spreads.items()})}"
    return ReportRow.claim("scls's completion times differ least", least, told, "5.3, Fig. 17")


def ablation_rows(runs: PaperRuns) -> list[ReportRow]:

    def values(figure: str, *names: str) -> dict[str, float]:
        return {line.strategy: line.figures[figure] for line in runs.lines if line.strategy in names}

    sizes, pads = (values(figure, "pm", "ab", "lb") for figure in ("batch_size", "pad"))
    larger, slightly = (one["pm"] < min(one["ab"], one["lb"]) for one in (sizes, pads))
    return [
        ReportRow.rise("each step has more throughput", values("throughput", *ABLATION), "5.4, Fig. 15a", 2),
        ReportRow.rise("each step has less mean response time", values("mean", *ABLATION), "5.4, Fig. 15b", falls=True),
        ReportRow.rise("pm has fewer pad tokens than so", values("pad", "so", "pm"), "5.4, Fig. 16c", falls=True),
        ReportRow.claim("ab and lb have larger batches than pm", larger, sizes, "5.4, Fig. 16b"),
        ReportRow.claim("ab and lb have slightly more pad tokens than pm", slightly, pads, "5.4, Fig. 16c"),
    ]


def slice_rows(runs: PaperRuns) -> list[ReportRow]:
    """5.5, by rising slice length."""

    def values(figure: str) -> dict[str, float]:
        return {f"{line.point.x:g}": line.figures[figure] for line in runs.lines}

    rates, returns, spreads = values("throughput"), values("early_returns"), values("imbalance")
    shortest, *_, longest = rates
    throughput = list(rates.values())
    best = throughput.index(max(throughput))
    between = 0 < best < len(rates) - 1 and rises(throughput[: best + 1]) and rises(throughput[best:][::-1])
    worse = spreads[longest] > list(spreads.values())[best]
    often = returns[longest] > returns[shortest]
    return [
        ReportRow.claim("throughput first rises with the slice length, then falls", between, rates, "5.5, Fig. 18a", 2),
        ReportRow.rise("longer slices have more invalid tokens", values("invalid"), "5.5, Fig. 19a"),
        ReportRow.rise("longer slices have smaller batches", values("batch_size"), "5.5, Fig. 19b", falls=True),
        ReportRow.rise("longer slices are fewer a request", values("slices"), "5.5, Fig. 20a", 2, falls=True),
        ReportRow.claim("long slices return early more often", often, returns, "5.5, Fig. 20b"),
        ReportRow.claim("the longest slices balance load worse than the best", worse, spreads, "5.5, Fig. 21"),
    ]


def worker_rows(runs: PaperRuns) -> list[ReportRow]:
    counts = {line.point.x: line.figures["throughput"] for line in runs.lines}
    alone = counts[min(counts)] / min(counts)
    shares = {f"{count:g}": throughput / count / alone for count, throughput in counts.items()}
    held = all(abs(share - 1) < 0.1 for share in shares.values())
    told = f"a worker's, to one alone: {chain(shares, 2)}"
    return [ReportRow.claim("throughput grows linearly with workers (10 %)", held, told, "5.6, Fig. 22")]


PAPER = Paper(
    {
        f"{experiment.__name__}{suffix}": partial(experiment, backend=backend)
        for suffix, backend in (("", HF), ("-ds", DS))
        for experiment in (main, ablation, slices, workers)
    },
    lambda seed, scale: chat_pool(seed, input_scale=scale),
    input_scale=INPUT_SCALE,
)
