"""The tables of Baton (section 5.2): how long its two sets of queries take by each method, all there from the start.

Simulated here; on the real engine they are what `lengthwise bench baton` measures.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from loadgen.experiments.baton import command as bench_baton
from loadgen.experiments.baton.paper import (
    BATON,
    BENCHMARK,
    DOUBLED,
    SHORTER,
    STRATEGIES,
    TABLE_1,
    TABLE_2,
    TARGET_1_QUERIES,
    TARGET_2_QUERIES,
)
from loadgen.experiments.baton.queries import MIX, Range
from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.options import choose
from loadgen.experiments.paper.plan import Line, Plan, Run
from loadgen.experiments.paper.published import baton_seconds, baton_times
from loadgen.experiments.paper.row import AnyRow, Row
from loadgen.experiments.paper.stage import Setting, Stage, limits
from loadgen.simulate.simulation import Machine
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


@dataclass(frozen=True, slots=True)
class Target:
    """One of the tables."""

    number: int
    title: str
    device: str
    machine: Machine
    methods: tuple[str, ...]
    queries: int
    mix: Sequence[tuple[Range, Range]]
    doubled: int | None
    """The batch size at which all sequences are twice as long."""
    published: Mapping[int, Mapping[str, float]]
    where: str


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "table-1": Target(
            1,
            "Baton: Table 1 (Target-1)",
            "an A6000",
            _machine(1.742e-4),  # 154.8e12 operations/s in 16 bits
            tuple(STRATEGIES),
            TARGET_1_QUERIES,
            MIX,
            DOUBLED,
            TABLE_1,
            "5.2.1, Table 1",
        ),
        "table-2": Target(
            2,
            "Baton: Table 2 (Target-2)",
            "a 4090",
            _machine(1.632e-4),  # 165.2e12
            (BENCHMARK, BATON),
            TARGET_2_QUERIES,
            ((SHORTER, SHORTER),),
            None,
            TABLE_2,
            "5.2.2, Table 2",
        ),
    }
)


def table(stage: Stage, target: Target) -> Plan:
    """All methods at each batch size of a table."""
    count = max(1, round(target.queries * stage.setting.scale))
    runs: list[Run] = []
    for size in target.published:
        queries = _queries(target.mix, count, 2 if size == target.doubled else 1, stage.setting)
        longest = max(one.input_length + one.output_length for one in queries.lengths)
        machine = replace(
            target.machine, capacity_tokens=ROOM * longest * size, context_length=longest, max_num_seqs=size
        )
        load, bounds = Load(float("inf"), count), limits(max_batch_size=size)
        runs += [
            Run(STRATEGIES[method], _point(size), machine, load, bounds, pool=queries) for method in target.methods
        ]
    setting = (
        f"{count} queries on llama2-7b-chat in 16 bits on {target.device}; two of this machine's speeds are solved for "
        "from Benchmark's completion times at 2 rows of Table 2 and 8 rows of Table 1: those two rows are no test"
    )
    rows = partial(table_rows, said=target.published, where=target.where, whole=stage.setting.scale == 1)
    return Plan(target.title, setting, SHOWN, runs, rows)


def table_rows(
    lines: Sequence[Line], said: Mapping[int, Mapping[str, float]], where: str, whole: bool = True
) -> list[AnyRow]:
    """Throughput against Benchmark's, and, where the sets are `whole`, seconds."""
    seconds = {(line.point, line.strategy): line.trial.duration for line in lines}
    rows: list[AnyRow] = []
    for size, by_method in said.items():
        point = _point(size)
        for method, published in by_method.items():
            if (point, STRATEGIES[method]) not in seconds:
                continue
            own = seconds[point, STRATEGIES[method]]
            if whole:
                rows.append(Row(f"{method}, {point}: completion time", {point: own}, baton_seconds(published, where)))
            if method != BENCHMARK:
                measured = {point: seconds[point, STRATEGIES[BENCHMARK]] / own}
                faster = baton_times(by_method[BENCHMARK] / published, where)
                rows.append(Row(f"{method}, {point}: throughput to Benchmark's", measured, faster))
    return rows


def _queries(mix: Sequence[tuple[Range, Range]], count: int, factor: int, setting: Setting) -> Pool:
    rng = random.Random(setting.seed)
    pairs = [mix[number % len(mix)] for number in range(count)]
    lengths = [Lengths(0.0, factor * rng.randint(*ins), factor * rng.randint(*outs)) for ins, outs in pairs]
    rng.shuffle(lengths)
    return Pool(tuple(lengths), SOURCE)


def _point(size: int) -> str:
    return f"{size} rows"


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {name: partial(table, target=target) for name, target in TARGETS.items()}
)


def run_baton(args: argparse.Namespace) -> int:
    """Measure both tables, or the chosen ones, on the real engine; returns the exit code. Raises UserError."""
    chosen = choose(list(TARGETS), args.experiments)
    parser = argparse.ArgumentParser()
    bench_baton.add_parser(parser.add_subparsers())
    bench = parser.parse_args(["baton", *_flags(args, chosen)])
    return int(bench.run(bench))


def _flags(args: argparse.Namespace, chosen: Sequence[str]) -> list[str]:
    """The flags of `bench baton`: a given scale is Table 1's, the short queries of Table 2 keep their proportion."""
    flags = [] if args.model is None else [args.model]
    flags += ["--target", *(str(TARGETS[name].number) for name in chosen), "--seed", str(args.seed)]
    if args.length_scale is not None:
        scale = Fraction(str(args.length_scale))
        flags += ["--scale", str(scale), "--short-scale", str(scale * bench_baton.SHORT_SCALE / bench_baton.SCALE)]
    if args.rounds is not None:
        flags += ["--rounds", str(args.rounds)]
    if args.save_result is not None:
        flags += ["--save-result", str(args.save_result)]
    return flags
