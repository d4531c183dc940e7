"""Baton's tables (5.2): how long its two sets of queries take by each method, all there from the start."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

import msgspec

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


@dataclass(frozen=True, slots=True)
class BatonTarget:
    number: int
    device: str
    token: float
    queries: int
    mix: tuple[tuple[Range, Range], ...]
    strategies: Mapping[str, str]
    table: tuple[tuple[int, tuple[int | float, ...]], ...]
    where: str
    doubled: int | None = None


TARGET_1, TARGET_2 = msgspec.convert(PUBLISHED["baton"], tuple[BatonTarget, BatonTarget])


def draw_lengths(target: BatonTarget, count: int, seed: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    lengths = [(rng.randint(*ins), rng.randint(*outs)) for ins, outs in islice(cycle(target.mix), count)]
    rng.shuffle(lengths)
    return lengths


def table(stage: TrialStage, target: BatonTarget) -> Experiment:
    count = max(1, round(target.queries * stage.setting.scale))
    points = [_point(target, count, size, stage.setting.seed) for size, _ in target.table]
    setting = (
        f"{count} queries on llama2-7b-chat in 16 bits on {target.device}; two of this machine's speeds are solved for "
        "from Benchmark's completion times at 2 rows of Table 2 and 8 rows of Table 1: those two rows are no test"
    )
    rows = partial(table_rows, target=target, whole=stage.setting.scale == 1)
    title = f"Baton: Table {target.number} (Target-{target.number})"
    return Experiment(title, setting, SHOWN, points, tuple(target.strategies.values()), rows)


def _point(target: BatonTarget, count: int, size: int, seed: int) -> TrialPoint:
    """On the tables' machine: prefill costs p1 a token and p4, an iteration d1 a cell and d4 = p4."""
    factor = 2 if size == target.doubled else 1
    lengths = tuple(RequestLengths(0.0, factor * ins, factor * outs) for ins, outs in draw_lengths(target, count, seed))
    longest = max(one.input_length + one.output_length for one in lengths)
    cost = Bilinear(p1=target.token, p4=PASS, d1=CELL, d4=PASS)
    machine = Machine(cost, ROOM * longest * size, size, context_length=longest, max_prefill_tokens=8192)
    load, bounds = PaperLoad(float("inf"), count), limits(max_batch_size=size)
    return TrialPoint(f"{size} rows", machine, load, bounds, size, pool=Pool(lengths, SOURCE))


def table_rows(runs: PaperRuns, target: BatonTarget, whole: bool = True) -> list[ReportRow]:
    """Throughput against Benchmark's and, for `whole` sets, seconds."""
    published: Mapping[float, Sequence[float]] = dict(target.table)
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


TABLES = {f"table-{one.number}": partial(table, target=one) for one in (TARGET_1, TARGET_2)}

PAPER = Paper(TABLES, lambda seed, scale: Pool((), SOURCE))
