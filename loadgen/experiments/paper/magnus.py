"""Magnus's experiments (IV, Table I, Fig. 14). Figure 6 is not one: the simulated speeds are fitted to it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp
from pathlib import Path
from statistics import correlation, median

from engine.measure.timing import SliceTiming
from loadgen.experiments.paper.experiment import Experiment, Paper, Rows
from loadgen.experiments.paper.load import LONGEST, PaperLoad, Pool, fitted, sigma_for_rmse, task_pool
from loadgen.experiments.paper.row import PERCENT, PUBLISHED, PaperRuns, ReportRow, chain, span
from loadgen.experiments.paper.trial import TrialPoint, TrialStage, limits, shrink
from loadgen.simulate.prediction import SimulatedPrediction
from loadgen.simulate.simulation import fit_parts, prices_of, simulate
from loadgen.workload.lengths import RequestLengths, clip
from loadgen.workload.sample import Sample, estimate, read_jsonl
from models.errors import UserError
from scheduler.learner import Learner, Lesson
from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.nearest import estimate_error, served_batch
from scheduler.serving_time.presets import V100_CHATGLM_6B
from scheduler.strategy import STRATEGIES

SHARE, MINUTES = 3.0, 20  # rate as a multiple of what `vs` serves, and minutes for ten lessons
# name, slowness against the profile, sigma of a batch's factor
CASES = (("times scatter", 1.0, 0.2), ("half as slow again", 1.5, 0.1), ("both", 1.5, 0.3))


@dataclass(frozen=True, slots=True)
class RoughCost:
    """A cost times a factor, times a log-normal one for each number of rows, which no bilinear model fits."""

    cost: Bilinear
    factor: float
    sigma: float
    seed: int

    def prefill(self, rows: int, length: int, /) -> float:
        return self._rough(rows) * self.cost.prefill(rows, length)

    def decode(self, rows: int, length: float, iterations: int, /) -> float:
        return self._rough(rows) * self.cost.decode(rows, length, iterations)

    def copy(self, length: int, /) -> float:
        return self.cost.copy(length)

    def _rough(self, rows: int) -> float:
        return self.factor * _draw_factor(self.sigma, self.seed, rows)


@lru_cache(maxsize=4096)
def _draw_factor(sigma: float, seed: int, rows: int) -> float:
    return exp(sigma * random.Random(f"{seed}, {rows}").gauss(0.0, 1.0))


@dataclass(slots=True)
class LessonLog:
    """The estimator's error at each lesson, beside the profile's; observes after what learns."""

    learning: Learner[SliceTiming]
    profile: Bilinear
    # (time, error before learning, profile's error), seconds
    errors: list[tuple[float, float, float]] = field(default_factory=list)
    _served: list[SliceTiming] = field(default_factory=list)
    _latest: Lesson | None = None

    def on_finish(self, assignment: Assignment, now: float) -> None:
        served = served_batch(assignment)
        self._served += [] if served is None else [served]
        latest = self.learning.latest
        if latest is not None and latest is not self._latest:
            self.errors.append((now, latest.rmse, estimate_error(self.profile, self._served)))
            self._latest, self._served = latest, []


def learning(stage: TrialStage) -> Experiment:
    """Figure 14: the estimator's error over time on machines that differ from their profile."""
    profile = prices_of(V100_CHATGLM_6B)
    served = stage.capacity("vs", V100_CHATGLM_6B, limits(), 350)
    seconds = 60.0 * MINUTES if stage.setting.duration is None else stage.setting.duration
    requests = PaperLoad(SHARE * served, round(SHARE * served * seconds), seed=stage.setting.seed).requests(stage.pool)
    rows: list[ReportRow] = []
    for name, factor, sigma in CASES:
        cost = RoughCost(profile, factor, sigma, stage.setting.seed)
        rows += _lesson_rows(name, lesson_errors(stage, cost, requests, f"learning, {name}"))
    cases = "; ".join(f"{name}: {factor:g} times, sigma {sigma:g}" for name, factor, sigma in CASES)
    setting = (
        f"magnus on {V100_CHATGLM_6B.workers} × ChatGLM-6B on a V100 32 GB, {len(requests)} requests at {SHARE:g} "
        "times what vs serves; machines take so many times as long as their profile says, each number of rows with a "
        f"log-normal factor of its own ({cases}); errors are root mean squares in seconds of the batches since the "
        "lesson before, with their true lengths"
    )
    return Experiment("Magnus: the estimator learns, Fig. 14", setting, rows=rows)


def lesson_errors(
    stage: TrialStage, cost: RoughCost, requests: Sequence[RequestLengths], title: str
) -> list[tuple[float, float, float]]:
    parts = fit_parts(STRATEGIES["magnus"], limits(), V100_CHATGLM_6B, cost.cost)
    assert parts.estimates.batches is not None, "magnus learns serving times"
    log = LessonLog(parts.estimates.batches.learner, cost.cost)
    parts = replace(parts, observers=(*parts.observers, log))
    predict = stage.prediction.source(stage.setting.seed)
    watch = stage.begin(f"{title}: {len(requests)} requests", len(requests))
    simulate(parts, replace(V100_CHATGLM_6B, cost=cost), requests, stage.max_tokens, watch, predict)
    return log.errors


def _lesson_rows(name: str, errors: Sequence[tuple[float, float, float]]) -> list[ReportRow]:
    falls, where = f"{name}: the estimator's error falls", "IV-C, Fig. 14"
    own, profile = ({f"{one[0] / 60:.0f} min": one[place] for one in errors} for place in (1, 2))
    if len(errors) < 2:
        return [ReportRow.claim(falls, False, f"too few lessons: {chain(own)}", where)]
    (before, *later), (_, *without) = own.values(), profile.values()
    return [
        ReportRow.claim(falls, median(later) < before, own, where),
        ReportRow.claim(f"{name}: it is below the profile's", median(later) < median(without), profile, where),
    ]


RMSE = 15.649  # tokens: the paper's predictor for ChatGLM-6B (III-B, Table II, USIN)
ABLATION = ("vs", "glp", "abp", "magnus")
SHARES = (3.0, 4.0, 6.0, 8.0)  # rates as multiples of what `vs` serves; the text names none
SATURATING = 50  # fixed batches an executor that show what `vs` serves
FIXED = 7  # rows of vs, ccb and glp's batches (IV-A)
SHOWN = ("throughput", "mean", "tail", "valid_tokens", "total_tokens", "batch_size", "pad", "invalid")
TOKENS = ("valid_tokens", "total_tokens")
COMMENTED = "commented code"  # instructions that ask for commented code; the reference is the comment alone


def main(stage: TrialStage) -> Experiment:
    """Figures 10 and 11."""
    new, _, _, low, high, where = next(one for one in PUBLISHED["magnus-main"] if one[1] == "vsq")
    why = "4-bit weights need a real engine: lengthwise compare --strategies magnus,vsq"
    skipped = ReportRow.skip(f"{new} over vsq: throughput", why, span(low, high, PERCENT), where)
    return _plan(stage, "Figs. 10 and 11", ("vs", "ccb", "ccb-padded", "magnus"), main_rows, [skipped])


def ablation(stage: TrialStage) -> Experiment:
    """Figures 12 and 13."""
    return _plan(stage, "ablation, Figs. 12 and 13", ABLATION, ablation_rows)


def _plan(
    stage: TrialStage, figures: str, names: Sequence[str], rows: Rows, skipped: Sequence[ReportRow] = ()
) -> Experiment:
    """The paper's executors, or a share with its share of the load."""
    machine, whole = shrink(V100_CHATGLM_6B, stage.setting.scale), V100_CHATGLM_6B.workers
    bounds = limits()
    rates: Sequence[float] | None = stage.setting.rates
    described = "as given" if rates else f"{', '.join(f'{share:g}' for share in SHARES)} × what vs serves"
    if rates is None:
        served = stage.capacity("vs", machine, bounds, SATURATING * FIXED * machine.workers)
        rates = [share * served * whole / machine.workers for share in SHARES]
    setting = (
        f"{machine.workers} × ChatGLM-6B on a V100 32 GB, {stage.seconds:g} s of Poisson arrivals; rates, which the "
        f"text does not name, are {described}, for {whole} workers; Φ {bounds.options.wma_threshold}; predictions are "
        f"off by {RMSE} tokens (RMSE), as those for ChatGLM-6B in Table II"
    )
    points = [
        TrialPoint(f"{rate:.3g}/s", machine, stage.load(rate * machine.workers / whole), bounds, rate) for rate in rates
    ]
    return Experiment(f"Magnus: {figures}", setting, SHOWN, points, names, rows, skipped)


def main_rows(runs: PaperRuns) -> list[ReportRow]:
    fewer, ccb, throughput = (runs.read(name, "throughput") for name in ("vs", "ccb", "magnus"))
    between = all(fewer[point] < ccb[point] < best for point, best in throughput.items())
    return [
        *runs.gain_rows(PUBLISHED["magnus-main"]),
        *runs.found_gains("magnus", "vs", SHOWN[:5]),
        *(row for old in ("ccb", "ccb-padded") for row in runs.found_gains("magnus", old, TOKENS)),
        ReportRow.rise("magnus's throughput rises with the rate", throughput, "IV-B, Fig. 11a", 2),
        ReportRow.claim("ccb's throughput is between those of vs and magnus", between, ccb, "IV-B, Fig. 11a", 2),
    ]


def ablation_rows(runs: PaperRuns) -> list[ReportRow]:
    valid, *others = runs.gain_rows(PUBLISHED["magnus-ablation"])
    glp = _claim_same(runs, "glp", "vs", "glp has almost the total tokens of vs", "total_tokens", 10, "IV-C, Fig. 12")
    abp = _claim_same(runs, "magnus", "abp", "magnus has the throughput of abp", "throughput", 5, "IV-C, Fig. 13a")
    return [valid, glp, *others, abp]


def _claim_same(runs: PaperRuns, new: str, old: str, what: str, figure: str, within: float, where: str) -> ReportRow:
    differences = runs.gain(new, old, figure)
    same = all(abs(value) < within for value in differences.values())
    return ReportRow.claim(f"{what} ({within:g} %)", same, f"{chain(differences)} % more", where)


def correlations(stage: TrialStage) -> Experiment:
    """Table I, drawn in Figure 2."""
    rows = _pearson_rows(stage.pool) or [ReportRow.skip("all of it", "the requests have no texts: give --tasks FOLDER")]
    setting = "lengths in tokens, estimated; answers are references, where the paper has those of three models"
    return Experiment("Magnus: Table I and Fig. 2", setting, rows=rows)


def _pearson_rows(pool: Pool) -> list[ReportRow]:
    pairs: dict[str, list[tuple[int, int]]] = {}
    for sample, lengths in zip(pool.samples, pool.lengths, strict=False):
        application = sample.label.partition("_")[0].upper()
        pairs.setdefault(application, []).append((estimate(sample.input), lengths.output_length))
    return [
        ReportRow.beside(
            f"{name}: Pearson of user input and answer, {len(pairs[name])} requests",
            {name: correlation(*zip(*pairs[name], strict=True))},
            *(low, high, "", "I, Table I"),
        )
        for name, low, high in PUBLISHED["magnus-pearson"]
        if name in pairs
    ]


def read_pool(folder: Path, answers: str, seed: int, input_scale: float = 1.0) -> Pool:
    """From task files (`*.jsonl`) in a folder, equally many of each, shuffled. `answers`: for commented code, `code`
    or `reference`. Raises UserError.
    """
    if not (files := sorted(folder.glob("*.jsonl"))):
        raise UserError(f"--tasks: {folder} has no file *.jsonl")
    rng = random.Random(f"{seed}, tasks")
    tasks = [read_jsonl(file, need_reference=True) for file in files]
    most = min(len(one) for one in tasks)
    samples = [sample for one in tasks for sample in rng.sample(one, most)]
    rng.shuffle(samples)
    lengths = [_lengths(sample, answers) for sample in samples]
    source = f"lengths of the task files {', '.join(file.stem for file in files)}, {most} requests of each, answers "
    source += "that should be commented code being the " + ("code and its comment" if answers == "code" else "comment")
    return fitted(lengths, input_scale, source, LONGEST, tuple(samples))


def _lengths(sample: Sample, answers: str) -> RequestLengths:
    output = sample.output_length(estimate) or 1
    if answers == "code" and COMMENTED in sample.instruction:
        output += estimate(sample.input)
    return RequestLengths(0.0, max(1, sample.input_length(estimate)), clip(output, LONGEST))


PAPER = Paper(
    {"main": main, "ablation": ablation, "correlations": correlations, "learning": learning},
    task_pool,
    prediction=lambda lengths: SimulatedPrediction(sigma_for_rmse(lengths, RMSE)),
)
