"""The tables of Baton (section 5.2): how long its two sets of queries take by each method, all there from the start.

Simulated here; on the real engine they are what `lengthwise bench baton` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from loadgen.experiments.baton import command as bench_baton
from loadgen.experiments.baton.options import SCALE, SHORT_SCALE, BatonBench
from loadgen.experiments.baton.paper import BENCHMARK, STRATEGIES, TARGETS, Target
from loadgen.experiments.baton.queries import draw_lengths
from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.options import PaperOptions
from loadgen.experiments.paper.plan import Line, Plan, Run
from loadgen.experiments.paper.row import SECONDS, TIMES, Published, Row
from loadgen.experiments.paper.stage import Stage, limits
from loadgen.simulate.node import Machine
from loadgen.workload.lengths import Lengths
from scheduler.serving_time.bilinear import Bilinear

ROOM = 4
"""Times the longest query that each row has memory for: the text tells of none that ran short."""
SOURCE = "lengths drawn evenly from the ranges of section 5.1, a word being a token"
SHOWN = ("duration", "throughput", "batch_size", "pad", "invalid")

PASS = 0.07066
CELL = 1.133e-6
"""Seconds, solved for: with them Benchmark takes Table 2's 161.77 s at 2 rows, and Table 1's 6,619 s at 8."""


def _machine(token: float) -> Machine:
    """A machine of the tables, as far as text and arithmetic tell.

    A prefill costs p1 a token and p4, an iteration d1 a cell and d4; p4 = d4, since both go through all layers once.
    p1 is arithmetic: 2 operations for each of 6.74e9 parameters and token, at half of what the tensor cores can do.
    """
    cost = Bilinear(p1=token, p2=0.0, p3=0.0, p4=PASS, d1=CELL, d2=0.0, d3=0.0, d4=PASS)
    return Machine(cost, capacity_tokens=65_536, max_num_seqs=16, context_length=65_536, max_prefill_tokens=8192)


def table(stage: Stage, target: Target, machine: Machine) -> Plan:
    """All methods at each batch size of a table."""
    count = max(1, round(target.queries * stage.setting.scale))
    runs: list[Run] = []
    for size, methods in target.seconds.items():
        factor = 2 if size == target.doubled else 1
        lengths = [
            Lengths(0.0, factor * ins, factor * outs) for ins, outs in draw_lengths(target, count, stage.setting.seed)
        ]
        queries = Pool(tuple(lengths), SOURCE)
        longest = max(one.input_length + one.output_length for one in lengths)
        sized = replace(machine, capacity_tokens=ROOM * longest * size, context_length=longest, max_num_seqs=size)
        load, bounds = Load(float("inf"), count), limits(max_batch_size=size)
        runs += [Run(STRATEGIES[method], _point(size), sized, load, bounds, pool=queries) for method in methods]
    setting = (
        f"{count} queries on llama2-7b-chat in 16 bits on {target.device}; two of this machine's speeds are solved for "
        "from Benchmark's completion times at 2 rows of Table 2 and 8 rows of Table 1: those two rows are no test"
    )
    rows = partial(table_rows, said=target.seconds, where=target.where, whole=stage.setting.scale == 1)
    number = target.table.removeprefix("Table ")
    return Plan(f"Baton: {target.table} (Target-{number})", setting, SHOWN, runs, rows)


def table_rows(
    lines: Sequence[Line], said: Mapping[int, Mapping[str, float]], where: str, whole: bool = True
) -> list[Row]:
    """Throughput against Benchmark's, and, where the sets are `whole`, seconds."""
    seconds = {(line.point, line.strategy): line.trial.duration for line in lines}
    rows: list[Row] = []
    for size, by_method in said.items():
        point = _point(size)
        for method, published in by_method.items():
            if (point, STRATEGIES[method]) not in seconds:
                continue
            own = seconds[point, STRATEGIES[method]]
            if whole:
                said_seconds = Published(published, published, SECONDS, where)
                rows.append(said_seconds.beside(f"{method}, {point}: completion time", {point: own}))
            if method != BENCHMARK:
                measured = {point: seconds[point, STRATEGIES[BENCHMARK]] / own}
                ratio = by_method[BENCHMARK] / published
                faster = Published(ratio, ratio, TIMES, where)
                rows.append(faster.beside(f"{method}, {point}: throughput to Benchmark's", measured))
    return rows


def _point(size: int) -> str:
    return f"{size} rows"


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        "table-1": partial(table, target=TARGETS[1], machine=_machine(1.742e-4)),  # 154.8e12 operations/s in 16 bits
        "table-2": partial(table, target=TARGETS[2], machine=_machine(1.632e-4)),  # 165.2e12
    }
)


def run_baton(asked: PaperOptions) -> int:
    """Measure both tables, or the chosen ones, on the real engine; returns the exit code. Raises UserError.

    A given scale is Table 1's; the short queries of Table 2 keep their proportion.
    """
    chosen = asked.choose(list(EXPERIMENTS))
    scale = SCALE if asked.length_scale is None else Fraction(str(asked.length_scale))
    bench = BatonBench(
        target=tuple(name.removeprefix("table-") for name in chosen),
        seed=asked.seed,
        scale=scale,
        short_scale=scale * SHORT_SCALE / SCALE,
        rounds=asked.rounds or 1,
        save_result=asked.save_result,
    )
    return bench_baton.run_options(bench if asked.model is None else replace(bench, model=asked.model))
