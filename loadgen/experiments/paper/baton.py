"""Baton's tables (5.2): how long its two sets of queries take by each method, all there from the start."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

from engine.simulated.machine import Machine
from loadgen.experiments.paper.experiment import Experiment, Paper
from loadgen.experiments.paper.load import PaperLoad, Pool
from loadgen.experiments.paper.row import PUBLISHED, SECONDS, TIMES, PaperRuns, ReportRow
from loadgen.experiments.paper.trial import TrialPoint, TrialStage, limits
from loadgen.workload.lengths import RequestLengths
from scheduler.serving_time.bilinear import Bilinear

ROOM = 4  # times the longest query, for each row; the text reports no shortage
SOURCE = "lengths drawn evenly from the ranges of section 5.1, a word being a token"
SHOWN = ("duration", "throughput", "batch_size", "pad", "invalid")
BENCHMARK = "Benchmark"

PASS = 0.07066
CELL = 1.133e-6  # seconds, solved for: Benchmark takes Table 2's 161.77 s at 2 rows, and Table 1's 6,619 s at 8

Range = tuple[int, int]  # tokens; a word of the text counts as one (5.1)
LONG: Range = (3600, 4400)  # "around 4,000 words"
SHORT: Range = (36, 400)  # "a few dozen to 400 words"
SHORTER: Range = (36, 200)  # Target-2's "a few dozen to 200 words"


@dataclass(frozen=True, slots=True)
class BatonTarget:
    """One table, measured with llama2-7b-chat in 16 bits."""

    number: int
    device: str
    token: float  # seconds of a prompt token
    queries: int
    mix: tuple[tuple[Range, Range], ...]  # (input, output) of queries, in proportion
    strategies: Mapping[str, str]  # the table's columns -> our strategies
    where: str
    doubled: int | None = None  # batch size at which sequences are doubled (5.2.1)


TARGET_1 = BatonTarget(
    number=1,
    device="an A6000",
    token=1.742e-4,  # 154.8e12 operations/s in 16 bits
    queries=120,
    mix=((LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (SHORT, SHORT)),  # summaries, articles, two short questions
    strategies={BENCHMARK: "fcfs-dynamic", "PD": "pd", "Baton": "baton", "Baton-PD": "baton-pd"},
    where="5.2.1, Table 1",
    doubled=4,
)
TARGET_2 = BatonTarget(
    number=2,
    device="a 4090",
    token=1.632e-4,  # 165.2e12
    queries=30,
    mix=((SHORTER, SHORTER),),
    strategies={BENCHMARK: "fcfs-dynamic", "Baton": "baton"},
    where="5.2.2, Table 2",
)


def draw_lengths(target: BatonTarget, count: int, seed: int) -> list[tuple[int, int]]:
    """Uniform in their ranges, shuffled."""
    rng = random.Random(seed)
    lengths = [(rng.randint(*ins), rng.randint(*outs)) for ins, outs in islice(cycle(target.mix), count)]
    rng.shuffle(lengths)
    return lengths


def table(stage: TrialStage, target: BatonTarget) -> Experiment:
    """All methods at each batch size."""
    count = max(1, round(target.queries * stage.setting.scale))
    published = {size: seconds for size, *seconds in PUBLISHED[f"baton-table-{target.number}"]}
    points = [_point(target, count, size, stage.setting.seed) for size in published]
    setting = (
        f"{count} queries on llama2-7b-chat in 16 bits on {target.device}; two of this machine's speeds are solved for "
        "from Benchmark's completion times at 2 rows of Table 2 and 8 rows of Table 1: those two rows are no test"
    )
    rows = partial(table_rows, target=target, published=published, whole=stage.setting.scale == 1)
    title = f"Baton: Table {target.number} (Target-{target.number})"
    return Experiment(title, setting, SHOWN, points, tuple(target.strategies.values()), rows)


def _point(target: BatonTarget, count: int, size: int, seed: int) -> TrialPoint:
    """On the tables' machine: prefill costs p1 a token and p4, an iteration d1 a cell and d4 = p4; p1 is 2 operations a
    parameter (6.74e9) at half the tensor cores' rate.
    """
    factor = 2 if size == target.doubled else 1
    lengths = tuple(RequestLengths(0.0, factor * ins, factor * outs) for ins, outs in draw_lengths(target, count, seed))
    longest = max(one.input_length + one.output_length for one in lengths)
    cost = Bilinear(p1=target.token, p2=0.0, p3=0.0, p4=PASS, d1=CELL, d2=0.0, d3=0.0, d4=PASS)
    machine = Machine(cost, ROOM * longest * size, size, context_length=longest, max_prefill_tokens=8192)
    load, bounds = PaperLoad(float("inf"), count), limits(max_batch_size=size)
    return TrialPoint(f"{size} rows", machine, load, bounds, size, pool=Pool(lengths, SOURCE))


def table_rows(
    runs: PaperRuns, target: BatonTarget, published: Mapping[Any, Sequence[float]], whole: bool = True
) -> list[ReportRow]:
    """Throughput against Benchmark's and, for `whole` sets, seconds."""
    seconds = {(line.point.x, line.strategy): line.figures["duration"] for line in runs.lines}
    rows: list[ReportRow] = []
    for size in dict.fromkeys(line.point.x for line in runs.lines):
        label, base = f"{size:g} rows", seconds[size, target.strategies[BENCHMARK]]
        for (method, strategy), said in zip(target.strategies.items(), published[size], strict=True):
            own = seconds[size, strategy]
            if whole:
                what = f"{method}, {label}: completion time"
                rows.append(ReportRow.beside(what, {label: own}, said, said, SECONDS, target.where))
            if method != BENCHMARK:
                ratio = published[size][0] / said
                what = f"{method}, {label}: throughput to Benchmark's"
                rows.append(ReportRow.beside(what, {label: base / own}, ratio, ratio, TIMES, target.where))
    return rows


PAPER = Paper(
    {"table-1": partial(table, target=TARGET_1), "table-2": partial(table, target=TARGET_2)},
    lambda seed, scale: Pool((), SOURCE),
)
