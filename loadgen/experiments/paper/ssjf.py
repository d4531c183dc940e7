"""SSJF's experiments (4.2), with the numbers of requests and variations of the authors' simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loadgen.experiments.paper.experiment import Experiment, Paper, Rows
from loadgen.experiments.paper.load import PaperLoad, chat_pool, outputs, sigma_for_accuracy
from loadgen.experiments.paper.row import PERCENT, PUBLISHED, TIMES, PaperRuns, ReportRow, chain
from loadgen.experiments.paper.trial import TrialPoint, TrialStage, limits
from loadgen.simulate.prediction import SimulatedPrediction
from scheduler.options import Scheduling
from scheduler.serving_time.presets import SSJF

ORDERS, MODES = ("fcfs", "ssjf", "sjf-oracle"), ("none", "dynamic", "continuous")
SIZE = 4  # rows of a batch (4.2)
REPEATS = 20  # runs of each point
REQUESTS = 50
LONGEST = 512  # answers are shorter (4.3, data processing)
RATES, SIZES_RATE, TRAINED_RATE = (1.0, 2.0, 5.0, 10.0), 10.0, 5.0  # requests/s
VARIATIONS = (1.0, 2.5, 4.0, 5.5)  # coefficients of variation of arrival gaps
SIZES = (1, 2, 4, 8)
# of the paper's predictor (4.3, Table 2, REG (L1)), and its classes' quantiles (`preprocess_dataset.py`)
ACCURACY, CUTS = 0.615, (0.25, 0.5, 0.75, 0.99)
SHOWN = ("mean", "tail", "answered_meanwhile", "first_quarter", "throughput", "batch_size")


@dataclass(frozen=True, slots=True)
class Counting:
    """Readings of what the text leaves open."""

    title: str
    burst: float  # rate of the burstiness experiment
    sorted_gaps: bool  # gaps of bursty arrivals ascend
    throughput: str  # the figure for throughput, which the text does not define
    told: str


OURS = Counting(
    "SSJF",
    0.19,
    False,
    "answered_meanwhile",
    "throughput, which the text does not define, counts requests answered before the last one comes",
)
AUTHORS = Counting(
    "SSJF, as the authors count",
    0.03,
    True,
    "first_quarter",
    "as in the authors' program, throughput is that of the first quarter to be answered, and gaps between arrivals of "
    "the gamma process come sorted, the shortest first",
)


def rates(stage: TrialStage, counting: Counting = OURS, *, own_times: bool = False) -> Experiment:
    """Figures 4 and 6; with a trace's arrival times as the paper has them from one of Azure's."""
    points = [make_point(stage, f"{rate:g}/s", rate, own_times=own_times) for rate in stage.setting.rates or RATES]
    title = "rates with a trace's arrival times, section 4.1" if own_times else "rates, Figs. 4 and 6"
    plan = _plan(stage, counting, title, points, _rows(counting, "rates"))
    if not own_times or any(one.arrival for one in stage.pool.lengths):
        return plan
    skipped = ReportRow.skip("all of it", "no request comes after the first: give --trace FILE")
    return replace(plan, points=(), rows=[skipped])


def burstiness(stage: TrialStage, counting: Counting = OURS) -> Experiment:
    """Figures 5 and 7."""
    points = [
        make_point(stage, f"CV {one:g}", counting.burst, burstiness=one**-2, sorted_gaps=counting.sorted_gaps)
        for one in VARIATIONS
    ]
    title = f"burstiness at {counting.burst:g}/s, Figs. 5 and 7"
    return _plan(stage, counting, title, points, _rows(counting, "burstiness"))


def sizes(stage: TrialStage) -> Experiment:
    """Figure 8."""
    points = [make_point(stage, f"{size} rows", SIZES_RATE, size=size) for size in SIZES]
    title = f"batch sizes at {SIZES_RATE:g}/s, Fig. 8"
    return replace(_plan(stage, OURS, title, points, size_rows), strategies=_list_names(MODES[1:]), sweeping=True)


def formulations(stage: TrialStage, counting: Counting = OURS) -> Experiment:
    """Table 2, as far as its accuracies decide."""
    points = [make_point(stage, name, TRAINED_RATE, right=right) for name, right, *_ in PUBLISHED["ssjf-table-2"]]
    rows = partial(formulation_rows, throughput=counting.throughput)
    return _plan(stage, counting, f"ways to train at {TRAINED_RATE:g}/s, Table 2", points, rows)


def make_point(
    stage: TrialStage, label: str, rate: float, size: int = SIZE, right: float | None = None, **shape: Any
) -> TrialPoint:
    """On the authors' machine.

    right   share of predictions in the right class; default: Table 2's
    shape   of the Load
    """
    duration, scale = stage.setting.duration, stage.setting.scale
    count = REQUESTS if duration is None else max(2, round(rate * duration))
    lengths = outputs(stage.pool.lengths)
    return TrialPoint(
        label,
        replace(SSJF, max_num_seqs=size),
        PaperLoad(rate, count, seed=stage.setting.seed, **shape),
        limits(max_batch_size=size, prefill_ahead=0, aging_factor=stage.setting.aging_factor),
        prediction=None if right is None else SimulatedPrediction(sigma_for_accuracy(lengths, CUTS, right)),
        repeats=max(1, round(REPEATS * scale)),
    )


def _rows(counting: Counting, table: str) -> Rows:
    return partial(sjf_rows, published=PUBLISHED[f"ssjf-{table}"], throughput=counting.throughput)


def _list_names(modes: Sequence[str] = MODES) -> list[str]:
    return [f"{order}-{mode}" for mode in modes for order in ORDERS]


def _plan(stage: TrialStage, counting: Counting, title: str, points: Sequence[TrialPoint], rows: Rows) -> Experiment:
    duration = stage.setting.duration
    right = f"{ACCURACY:.1%} (Table 2)" if points[0].prediction is None else "the share that the table tells"
    last = f"{REQUESTS} requests" if duration is None else f"{duration:g} s of arrivals"
    setting = (
        f"0.1 s a request and 0.02 s a token, 1 executor, at most {SIZE} rows unless said; means of "
        f"{points[0].repeats} runs of {last}, as in the simulator that the authors publish; predictions fall into the "
        f"right one of {len(CUTS) + 1} classes in {right}; {_tell_aging(stage.setting.aging_factor)}{counting.told}"
    )
    return Experiment(f"{counting.title}: {title}", setting, SHOWN, points, _list_names(), rows)


def _tell_aging(factor: float) -> str:
    if factor == Scheduling.aging_factor:
        return ""
    return f"aging after {factor:g} times the predicted time; " if factor else "no aging; "


def sjf_rows(runs: PaperRuns, published: Sequence[Any], throughput: str) -> list[ReportRow]:
    """SJF against FCFS in the same mode; `throughput` is the figure that stands for the text's."""
    rows = []
    for name, (low, high), where, (least, most), times_where in published:
        fcfs = f"fcfs-{name.rpartition('-')[2]}"
        jct, served = runs.gain(name, fcfs, "mean"), runs.compare(name, fcfs, throughput)
        rows.append(ReportRow.beside(f"{name}: mean JCT less by", jct, low, high, PERCENT, f"4.2, {where}"))
        rows.append(ReportRow.beside(f"{name}: throughput", served, least, most, TIMES, f"4.2, {times_where}"))
    return rows


def size_rows(runs: PaperRuns) -> list[ReportRow]:
    """Figure 8, which the text gives in words."""
    where = "4.2, Fig. 8"
    jct = runs.gain("ssjf-continuous", "ssjf-dynamic", "mean")
    below = all(value >= 0 for value in jct.values())
    rows = [ReportRow.claim("continuous batching has less JCT than dynamic", below, f"{chain(jct)} % less", where)]
    for mode in MODES[1:]:
        gains = runs.gain(f"ssjf-{mode}", f"fcfs-{mode}", "mean")
        values = list(gains.values())
        shrink = f"ssjf-{mode}: JCT gains shrink with the batch size"
        rows.append(ReportRow.claim(shrink, values[-1] < values[0], f"{chain(gains)} %", where))
    return rows


def formulation_rows(runs: PaperRuns, throughput: str) -> list[ReportRow]:
    """Table 2's last two lines, in all modes, as the text names none."""
    gains = {mode: runs.gain(f"ssjf-{mode}", f"fcfs-{mode}", "mean") for mode in MODES}
    times = {mode: runs.compare(f"ssjf-{mode}", f"fcfs-{mode}", throughput) for mode in MODES}
    rows = []
    for name, right, percent, factor in PUBLISHED["ssjf-table-2"]:
        jct, served = ({mode: one[name] for mode, one in by.items() if name in one} for by in (gains, times))
        said = f"{name}, {right:.1%} right"
        rows.append(ReportRow.beside(f"{said}: mean JCT less by", jct, percent, percent, PERCENT, "4.3, Table 2"))
        rows.append(ReportRow.beside(f"{said}: throughput", served, factor, factor, TIMES, "4.3, Table 2"))
    return rows


PAPER = Paper(
    {
        "rates": rates,
        "burstiness": burstiness,
        "sizes": sizes,
        "rates-authors": partial(rates, counting=AUTHORS),
        "burstiness-authors": partial(burstiness, counting=AUTHORS),
        "formulations": formulations,
        "formulations-authors": partial(formulations, counting=AUTHORS),
        "azure-times": partial(rates, own_times=True),
        "azure-times-authors": partial(rates, counting=AUTHORS, own_times=True),
    },
    lambda seed, scale: chat_pool(seed, LONGEST, scale),
    LONGEST,
    lambda lengths: SimulatedPrediction(sigma_for_accuracy(lengths, CUTS, ACCURACY)),
)
