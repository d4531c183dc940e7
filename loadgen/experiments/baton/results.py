"""The results of races as plain data, next to the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from loadgen.experiments.baton.paper import BENCHMARK
from loadgen.experiments.baton.race import Race
from loadgen.html.plot import thin

POINTS = 400
"""Points kept of each curve."""


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one batch size, and its figures in the paper."""

    races: tuple[Race, ...]
    """The runs, one a round."""
    benchmark_seconds: float
    same_answers: int
    """Queries that it answers with the very tokens of Benchmark, in every round."""
    paper_seconds: float | None
    paper_speedup: float | None

    @property
    def method(self) -> str:
        return self.races[0].method

    @property
    def seconds(self) -> float:
        return statistics.median(race.seconds for race in self.races)

    @property
    def speedup(self) -> float:
        """Throughput next to Benchmark's."""
        return self.benchmark_seconds / self.seconds

    @property
    def queries(self) -> int:
        return len(self.races[0].answers)


@dataclass(frozen=True, slots=True)
class Table:
    """One of the paper's tables: lines by batch size."""

    title: str
    scale: Mapping[int, float]
    """Factors of the paper's lengths by batch size; its own doubling is part of them."""
    lines: Mapping[int, Sequence[Line]]

    @property
    def different_answers(self) -> int:
        return sum(line.queries - line.same_answers for lines in self.lines.values() for line in lines)


def lines_of(races: Sequence[Race], paper: Mapping[int, Mapping[str, float]]) -> list[Line]:
    """The lines of one batch size, in the order in which the methods first ran."""
    benchmark = [race for race in races if race.method == BENCHMARK]
    seconds = statistics.median(race.seconds for race in benchmark)
    reported = paper.get(races[0].batch_size, {})
    return [
        Line(
            races=(own := tuple(race for race in races if race.method == method)),
            benchmark_seconds=seconds,
            same_answers=_same(own, benchmark[0]),
            paper_seconds=reported.get(method),
            paper_speedup=reported[BENCHMARK] / reported[method] if method in reported else None,
        )
        for method in dict.fromkeys(race.method for race in races)
    ]


def _same(races: Sequence[Race], benchmark: Race) -> int:
    answers = zip(benchmark.answers, *(race.answers for race in races), strict=True)
    return sum(len(set(versions)) == 1 for versions in answers)


def table_json(table: Table) -> dict[str, object]:
    """Seconds, bytes, and curves as lists of [seconds, value]."""
    return {
        "title": table.title,
        "batches": [
            {"batch_size": size, "scale": table.scale[size], "lines": [_line_json(line) for line in lines]}
            for size, lines in table.lines.items()
        ],
    }


def _line_json(line: Line) -> dict[str, object]:
    last = line.races[-1]
    return {
        "method": line.method,
        "seconds": [race.seconds for race in line.races],
        "median_seconds": line.seconds,
        "throughput_to_benchmark": line.speedup,
        "paper_seconds": line.paper_seconds,
        "paper_throughput_to_benchmark": line.paper_speedup,
        "queries": line.queries,
        "same_answers": line.same_answers,
        "peak_kv_bytes": last.peak_kv_bytes,
        "tokens": asdict(last.tally),
        "curves": {name: [(round(x, 6), y) for x, y in thin(points, POINTS)] for name, points in last.curves.items()},
    }
