"""Carries out `lengthwise bench baton`: which method runs which queries when."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

from loadgen.experiments.baton.paper import BATON, BENCHMARK, DOUBLED, STRATEGIES, TABLE_1, TABLE_2
from loadgen.experiments.baton.queries import target_1, target_2
from loadgen.experiments.baton.race import Race, race, warm_up
from loadgen.experiments.baton.results import Line, Table, lines_of, paper_table
from loadgen.experiments.engine.job import Job
from loadgen.experiments.engine.setup import Subject, load_subject, machine
from models.progress import Bars

Clock = Callable[[], float]


def run_bench(args: argparse.Namespace, clock: Clock = time.perf_counter) -> tuple[Subject, list[Table]]:
    """Raises UserError with the remedy."""
    with Bars() as bars:
        bars.begin(f"loading {args.model}")
        subject = load_subject(args.model, dtype=args.dtype, device=args.device, quantization=args.quantization)
        bench = Bench(args, subject, bars, clock)
        tables = [bench.target_1] if 1 in args.target else []
        tables += [bench.target_2] if 2 in args.target else []
        return subject, [table() for table in tables]


def setting(args: argparse.Namespace, subject: Subject) -> dict[str, object]:
    """What the figures depend on."""
    names = ("num_queries", "num_short_queries", "rounds", "seed")
    found: dict[str, object] = {"model": subject.name, "dtype": subject.dtype}
    found |= {"scale": str(args.scale), "short_scale": str(args.short_scale)}
    return found | {name: getattr(args, name) for name in names} | machine(subject.device)


class Bench:
    """The tables of one run, on one model."""

    def __init__(self, args: argparse.Namespace, subject: Subject, bars: Bars, clock: Clock) -> None:
        self._args = args
        self._subject = subject
        self._bars = bars
        self._clock = clock

    def target_1(self) -> Table:
        """Four methods on the mix; sequences are twice as long at a batch of 4, as in the paper."""
        args = self._args
        scales = {size: args.scale * (2 if size == DOUBLED else 1) for size in TABLE_1}
        sets = {
            size: target_1(args.num_queries, float(factor), self._subject.vocab, args.seed)
            for size, factor in scales.items()
        }
        title = f"Target-1 (Table 1): {args.num_queries} queries, lengths x {args.scale}, doubled at a batch of 4"
        return self._table(1, title, scales, sets, tuple(STRATEGIES))

    def target_2(self) -> Table:
        """Benchmark and Baton on short queries."""
        args = self._args
        jobs = target_2(args.num_short_queries, float(args.short_scale), self._subject.vocab, args.seed)
        scales, sets = dict.fromkeys(TABLE_2, args.short_scale), dict.fromkeys(TABLE_2, jobs)
        title = f"Target-2 (Table 2): {args.num_short_queries} short queries, lengths x {args.short_scale}"
        return self._table(2, title, scales, sets, (BENCHMARK, BATON))

    def _table(
        self,
        target: int,
        title: str,
        scales: dict[int, Fraction],
        sets: dict[int, list[Job]],
        methods: Sequence[str],
    ) -> Table:
        for jobs in sets.values():
            self._subject.require_context(max(job.columns for job in jobs))
        lines = {size: self._lines(target, size, jobs, methods) for size, jobs in sets.items()}
        return Table(title, {size: float(factor) for size, factor in scales.items()}, lines)

    def _lines(self, target: int, size: int, jobs: Sequence[Job], methods: Sequence[str]) -> list[Line]:
        """All methods at one batch size; each round begins with another one."""
        self._bars.begin(f"Target-{target}, batch of {size}: warming up")
        warm_up(self._subject, size, jobs)
        races: list[Race] = []
        for number in range(self._args.rounds):
            first = number % len(methods)
            for method in (*methods[first:], *methods[:first]):
                self._bars.begin(f"Target-{target}, batch of {size}: {method}", len(jobs))
                races.append(race(self._subject, method, size, jobs, self._clock, self._bars.advance))
        return lines_of(races, paper_table(target))
