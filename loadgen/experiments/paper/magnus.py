"""Magnus's experiments: main comparison and ablation (section IV), and how well prompts tell the lengths of answers
(Table I). Figure 6 is none: the simulated machine's two speeds are solved for from its times."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import correlation
from types import MappingProxyType

from loadgen.experiments.paper.load import LONGEST, Pool, fitted
from loadgen.experiments.paper.magnus_estimator import learning
from loadgen.experiments.paper.plan import Plan, Rows, Stage, limits, shrink
from loadgen.experiments.paper.row import (
    PERCENT,
    PUBLISHED,
    TITLES,
    Published,
    Row,
    chain,
    claim,
    found_gains,
    gain,
    gain_rows,
    read,
    skip,
)
from loadgen.experiments.paper.trial import Line, Point
from loadgen.workload.lengths import Lengths, clip
from loadgen.workload.sample import Sample, estimate, read_jsonl
from models.errors import UserError
from scheduler.serving_time.presets import V100_CHATGLM_6B

RMSE = 15.649  # tokens: the error of the paper's predictor for ChatGLM-6B (III-B, Table II, USIN)
ABLATION = ("vs", "glp", "abp", "magnus")
SHARES = (3.0, 4.0, 6.0, 8.0)  # rates as multiples of what `vs` serves: the text names none
SATURATING = 50  # fixed batches an executor that show what `vs` serves
FIXED = 7  # rows of the batches of vs, ccb and glp (IV-A)
SHOWN = ("throughput", "mean", "tail", "valid_tokens", "total_tokens", "batch_size", "pad", "invalid")
TOKENS = ("valid_tokens", "total_tokens")
COMMENTED = "commented code"  # in an instruction that asks for code with a comment; the reference is the comment alone


def main(stage: Stage) -> Plan:
    """Figures 10 and 11."""
    new, _, _, low, high, where = next(one for one in PUBLISHED["magnus-main"] if one[1] == "vsq")
    skipped = skip(
        f"{new} over vsq: throughput",
        "4-bit weights need a real engine: lengthwise compare --strategies magnus,vsq",
        Published(low, high, PERCENT, where),
    )
    return _plan(stage, "Figs. 10 and 11", ("vs", "ccb", "ccb-padded", "magnus"), main_rows, [skipped])


def ablation(stage: Stage) -> Plan:
    """Figures 12 and 13."""
    return _plan(stage, "ablation, Figs. 12 and 13", ABLATION, ablation_rows)


def _plan(stage: Stage, figures: str, names: Sequence[str], rows: Rows, skipped: Sequence[Row] = ()) -> Plan:
    """The paper's executors, or a share of them under the same share of the load."""
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
        Point(f"{rate:.3g}/s", machine, stage.load(rate * machine.workers / whole), bounds, rate) for rate in rates
    ]
    return Plan(f"Magnus: {figures}", setting, SHOWN, points, names, rows, skipped)


def main_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section IV-B: magnus against its baselines."""
    fewer, ccb, throughput = (read(lines, name, "throughput") for name in ("vs", "ccb", "magnus"))
    grows = all(one <= other for one, other in pairwise(throughput.values()))
    between = all(fewer[point] < ccb[point] < best for point, best in throughput.items())
    return [
        *gain_rows(lines, PUBLISHED["magnus-main"]),
        *found_gains(lines, "magnus", "vs", [*TITLES][:-1]),
        *(row for old in ("ccb", "ccb-padded") for row in found_gains(lines, "magnus", old, TOKENS)),
        claim("magnus's throughput rises with the rate", grows, chain(throughput, 2), "IV-B, Fig. 11a"),
        claim("ccb's throughput is between those of vs and magnus", between, chain(ccb, 2), "IV-B, Fig. 11a"),
    ]


def ablation_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section IV-C: each step of the ablation."""
    valid, *others = gain_rows(lines, PUBLISHED["magnus-ablation"])
    return [
        valid,
        _claim_same(lines, "glp", "vs", "glp has almost the total tokens of vs", "total_tokens", 10, "IV-C, Fig. 12"),
        *others,
        _claim_same(lines, "magnus", "abp", "magnus has the throughput of abp", "throughput", 5, "IV-C, Fig. 13a"),
    ]


def _claim_same(lines: Sequence[Line], new: str, old: str, what: str, figure: str, within: float, where: str) -> Row:
    """The claim that two strategies have a figure within this many percent of each other."""
    differences = gain(lines, new, old, figure)
    same = all(abs(value) < within for value in differences.values())
    return claim(f"{what} ({within:g} %)", same, f"{chain(differences)} % more", where)


def correlations(stage: Stage) -> Plan:
    """Table I, whose correlations Figure 2 draws."""
    rows = _pearson_rows(stage.pool) or [skip("all of it", "the requests have no texts: give --tasks FOLDER")]
    setting = "lengths in tokens, estimated; answers are references, where the paper has those of three models"
    return Plan("Magnus: Table I and Fig. 2", setting, others=rows)


def _pearson_rows(pool: Pool) -> list[Row]:
    pairs: dict[str, list[tuple[int, int]]] = {}
    for sample, lengths in zip(pool.samples, pool.lengths, strict=False):
        application = sample.label.partition("_")[0].upper()
        pairs.setdefault(application, []).append((estimate(sample.input), lengths.output_length))
    return [
        Published(low, high, "", "I, Table I").beside(
            f"{name}: Pearson of user input and answer, {len(pairs[name])} requests",
            {name: correlation(*zip(*pairs[name], strict=True))},
        )
        for name, low, high in PUBLISHED["magnus-pearson"]
        if name in pairs
    ]


def read_pool(folder: Path, answers: str, seed: int, input_scale: float = 1.0) -> Pool:
    """Requests of the task files (`*.jsonl`) in a folder, as many of each task, in random order. Raises UserError.

    `answers` says what answers an instruction that asks for commented code: `code` or `reference`.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
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


def _lengths(sample: Sample, answers: str) -> Lengths:
    output = sample.output_length(estimate) or 1
    if answers == "code" and COMMENTED in sample.instruction:
        output += estimate(sample.input)
    return Lengths(0.0, max(1, sample.input_length(estimate)), clip(output, LONGEST))


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        "main": main,
        "ablation": ablation,
        "correlations": correlations,
        "learning": learning,
    }
)
