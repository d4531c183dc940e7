"""Carries out `lengthwise bench baton`: each method runs each set of queries, one after another, in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.experiments.baton.options import BatonBench
from loadgen.experiments.baton.paper import TARGETS
from loadgen.experiments.baton.queries import draw_queries
from loadgen.experiments.baton.race import Race, race, warm_up
from loadgen.experiments.baton.results import Line, Table, lines_of
from loadgen.experiments.engine.job import Job
from loadgen.experiments.engine.setup import Subject, describe_machine, load_subject
from models.progress import Bars

Clock = Callable[[], float]


def run_bench(asked: BatonBench, clock: Clock = time.perf_counter) -> tuple[Subject, list[Table]]:
    """Load the model and measure the tables that were asked for. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = load_subject(asked)
        bench = Bench(asked, subject, bars, clock)
        return subject, [bench.measure(number) for number in TARGETS if not asked.target or str(number) in asked.target]


def describe_setting(asked: BatonBench, subject: Subject) -> dict[str, object]:
    """The settings on which the figures depend."""
    found: dict[str, object] = {"model": subject.name, "dtype": subject.dtype}
    found |= {"scale": str(asked.scale), "short_scale": str(asked.short_scale)}
    found |= {name: getattr(asked, name) for name in ("num_queries", "num_short_queries", "rounds", "seed")}
    return found | describe_machine(subject.device)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run on one model."""

    asked: BatonBench
    subject: Subject
    bars: Bars
    clock: Clock

    def measure(self, number: int) -> Table:
        """A table: all its methods at each batch size."""
        asked, target = self.asked, TARGETS[number]
        count, scale = {
            1: (asked.num_queries, asked.scale),
            2: (asked.num_short_queries, asked.short_scale),
        }[number]
        scales = {size: float(scale * (2 if size == target.doubled else 1)) for size in target.seconds}
        sets = {
            size: draw_queries(target, count, factor, self.subject.vocab, asked.seed) for size, factor in scales.items()
        }
        for jobs in sets.values():
            self.subject.require_context(max(job.columns for job in jobs))
        doubled = f", doubled at a batch of {target.doubled}" if target.doubled else ""
        title = f"Target-{number} ({target.table}): {count} {target.noun}, lengths x {scale}{doubled}"
        return Table(title, scales, {size: self._run_methods(number, size, jobs) for size, jobs in sets.items()})

    def _run_methods(self, number: int, size: int, jobs: Sequence[Job]) -> list[Line]:
        """All methods at one batch size; each round begins with another one."""
        title, published = f"Target-{number}, batch of {size}", TARGETS[number].seconds
        self.bars.begin(f"{title}: warming up")
        warm_up(self.subject, size, jobs)
        methods = tuple(published[size])
        races: list[Race] = []
        for turn in range(self.asked.rounds):
            first = turn % len(methods)
            for method in (*methods[first:], *methods[:first]):
                self.bars.begin(f"{title}: {method}", len(jobs))
                races.append(race(self.subject, method, size, jobs, self.clock, self.bars.advance))
        return lines_of(races, published)
