"""The tables of Baton (section 5.2): how long its two sets of queries take by each method, all there from the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from loadgen.experiments.baton.paper import (
    BATON,
    BATON_PD,
    BENCHMARK,
    DOUBLED,
    PD,
    SHORTER,
    STRATEGIES,
    TABLE_1,
    TABLE_2,
    TARGET_1_QUERIES,
    TARGET_2_QUERIES,
)
from loadgen.experiments.baton.queries import MIX, Range
from loadgen.experiments.paper.load import Load, Pool
from loadgen.experiments.paper.machines import A6000_LLAMA2_7B, RTX4090_LLAMA2_7B
from loadgen.experiments.paper.published import baton_seconds, baton_times
from loadgen.experiments.paper.row import AnyRow, Row
from loadgen.experiments.paper.stage import Experiment, Line, Setting, Stage, limits, missing
from loadgen.simulate.simulation import Machine
from loadgen.workload.lengths import Lengths

ROOM = 4
"""Times the longest query that each row has memory for: the text tells of none that ran short."""
SOURCE = "lengths drawn evenly from the ranges of section 5.1, a word being a token"
SHOWN = ("duration", "throughput", "batch_size", "pad", "invalid")


def table_1(stage: Stage) -> Experiment:
    """Target-1; at batch size 4 all sequences are twice as long."""
    count = max(1, round(TARGET_1_QUERIES * stage.setting.scale))
    lines: list[Line] = []
    for size in TABLE_1:
        queries = _queries(MIX, count, 2 if size == DOUBLED else 1, stage.setting)
        lines += _race(stage, A6000_LLAMA2_7B, queries, size, tuple(STRATEGIES))
    return _experiment(stage, "Baton: Table 1 (Target-1)", "an A6000", count, lines, TABLE_1, "5.2.1, Table 1")


def table_2(stage: Stage) -> Experiment:
    """Target-2: short queries only."""
    count = max(1, round(TARGET_2_QUERIES * stage.setting.scale))
    queries = _queries(((SHORTER, SHORTER),), count, 1, stage.setting)
    lines = [line for size in TABLE_2 for line in _race(stage, RTX4090_LLAMA2_7B, queries, size, (BENCHMARK, BATON))]
    return _experiment(stage, "Baton: Table 2 (Target-2)", "a 4090", count, lines, TABLE_2, "5.2.2, Table 2")


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
            if method != BENCHMARK and (point, STRATEGIES[BENCHMARK]) in seconds:
                measured = {point: seconds[point, STRATEGIES[BENCHMARK]] / own}
                faster = baton_times(by_method[BENCHMARK] / published, where)
                rows.append(Row(f"{method}, {point}: throughput to Benchmark's", measured, faster))
    return rows


def _race(stage: Stage, machine: Machine, queries: Pool, size: int, methods: Sequence[str]) -> list[Line]:
    longest = max(one.input_length + one.output_length for one in queries.lengths)
    room = replace(machine, capacity_tokens=ROOM * longest * size, context_length=longest, max_num_seqs=size)
    own = stage.elsewhere(queries, max(one.output_length for one in queries.lengths))
    load = Load(float("inf"), len(queries.lengths))
    names = stage.known([STRATEGIES[method] for method in methods])
    return [own.run(name, room, load, limits(max_batch_size=size), _point(size)) for name in names]


def _queries(mix: Sequence[tuple[Range, Range]], count: int, factor: int, setting: Setting) -> Pool:
    rng = random.Random(setting.seed)
    pairs = [mix[number % len(mix)] for number in range(count)]
    lengths = [Lengths(0.0, factor * rng.randint(*ins), factor * rng.randint(*outs)) for ins, outs in pairs]
    rng.shuffle(lengths)
    return Pool(tuple(lengths), SOURCE)


def _point(size: int) -> str:
    return f"{size} rows"


def _experiment(
    stage: Stage,
    title: str,
    device: str,
    count: int,
    lines: Sequence[Line],
    said: Mapping[int, Mapping[str, float]],
    where: str,
) -> Experiment:
    names = [STRATEGIES[method] for method in (BENCHMARK, PD, BATON, BATON_PD)]
    rows = table_rows(lines, said, where, whole=stage.setting.scale == 1)
    setting = (
        f"{count} queries on llama2-7b-chat in 16 bits on {device}; two of this machine's speeds are solved for from "
        "Benchmark's completion times at 2 rows of Table 2 and 8 rows of Table 1: those two rows are no test"
    )
    return Experiment(title, setting, SHOWN, lines, [*missing(stage, names), *rows])


EXPERIMENTS: Mapping[str, Callable[[Stage], Experiment]] = MappingProxyType({"table-1": table_1, "table-2": table_2})
