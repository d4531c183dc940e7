"""Carries out `lengthwise bench engine`: loads, measures the parts that were asked for, one after another."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel

from loadgen.experiments.engine.apart import apart
from loadgen.experiments.engine.contest import Standing, contest
from loadgen.experiments.engine.floor import Floor, measure_bandwidth, weight_bytes
from loadgen.experiments.engine.job import GREEDY, ROWS, Job, draw_jobs, draw_ragged_shapes, longest
from loadgen.experiments.engine.options import EngineBench
from loadgen.experiments.engine.overhead import measure_overhead
from loadgen.experiments.engine.report import GridResult, Results
from loadgen.experiments.engine.runners import Generate, GenerateBatch, Lengthwise, Runner
from loadgen.experiments.engine.setup import Subject, describe_machine, load_beside, load_plain, load_subject
from models.network.generation_config import SamplingDefaults
from models.progress import Bars

OVERHEAD_ROWS = 32

Clock = Callable[[], float]


def run_bench(options: EngineBench, clock: Clock = time.perf_counter) -> Results:
    """Load the model and measure what was asked for. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {options.model}")
        subject = apart(lambda _: load_subject(options))
        beside = {kind: apart(partial(_load_beside, subject, kind)) for kind in options.beside}
        return Bench(options, subject, bars, clock, beside).run()


def _load_beside(subject: Subject, kind: str, _: threading.Event) -> Subject:
    return load_beside(subject, kind)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run on one model."""

    options: EngineBench
    subject: Subject
    bars: Bars
    clock: Clock
    beside: Mapping[str, Subject]
    """The model with its weights kept otherwise, by the way of keeping them."""

    def run(self) -> Results:
        """Measure one part after another."""
        asked = self.options
        rows = asked.rows or (() if asked.ragged or asked.overhead else ROWS)
        self._refuse_long(rows)
        plain = apart(lambda _: load_plain(self.subject)) if rows or asked.ragged else None
        floor = self._measure_floor() if rows else None
        return Results(
            setting=self._describe(),
            floor=floor,
            grid=tuple(self._compare(plain, floor, count) for count in rows if plain and floor),
            ragged=tuple(self._contest(plain, "ragged", asked.slots, self._draw_ragged))
            if plain and asked.ragged
            else (),
            overhead=measure_overhead(self.subject, self._draw_even(OVERHEAD_ROWS, 0), self.clock)
            if asked.overhead
            else None,
        )

    def _refuse_long(self, rows: Sequence[int]) -> None:
        """Refuse, before anything takes long, what the model cannot read and what cannot be drawn."""
        if rows or self.options.overhead:
            self.subject.require_context(self.options.input_len + self.options.output_len)
        if self.options.ragged:
            self.subject.require_context(longest(self._draw_ragged(0)))

    def _measure_floor(self) -> Floor:
        self.bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(self.subject.device, self.clock)
        return Floor(bandwidth, weight_bytes(self.subject.model.network), self.subject.model.kv.bytes_per_token)

    def _compare(self, plain: PreTrainedModel, floor: Floor, rows: int) -> GridResult:
        standings = self._contest(plain, f"{rows} rows", rows, partial(self._draw_even, rows))
        return GridResult(rows, floor.step(rows, self.options.input_len, self.options.output_len), tuple(standings))

    def _contest(
        self, plain: PreTrainedModel, title: str, slots: int, draw: Callable[[int], Sequence[Job]]
    ) -> list[Standing]:
        runners: tuple[Runner, ...] = (
            Lengthwise(self.subject, slots, self.clock),
            *(Lengthwise(one, slots, self.clock, f"lengthwise {kind}") for kind, one in self.beside.items()),
            Generate(plain, slots, self.clock),
            GenerateBatch(plain, slots, self.clock),
        )
        rounds = self.options.rounds
        self.bars.begin(title, len(runners) * (rounds + 1))
        return contest(runners, draw, rounds, self.subject.device, self.bars.advance)

    @property
    def _sampling(self) -> SamplingDefaults:
        return self.subject.model.sampling_defaults if self.options.sampling == "defaults" else GREEDY

    def _draw_even(self, rows: int, number: int) -> list[Job]:
        """Rows of one shape; other tokens each round."""
        shapes = [(self.options.input_len, self.options.output_len)] * rows
        return draw_jobs(random.Random(f"{self.options.seed} {number}"), self.subject.vocab, shapes, self._sampling)

    def _draw_ragged(self, number: int) -> list[Job]:
        """Jobs of the same lengths in the same order each round, else rounds could not be compared; other tokens."""
        asked = self.options
        shapes = draw_ragged_shapes(random.Random(asked.seed), asked.num_requests, asked.min_len, asked.max_len)
        return draw_jobs(random.Random(f"{asked.seed} {number}"), self.subject.vocab, shapes, self._sampling)

    def _describe(self) -> dict[str, object]:
        names = (
            "input_len",
            "output_len",
            "sampling",
            "rounds",
            "seed",
            "num_requests",
            "min_len",
            "max_len",
            "slots",
            "model",
        )
        found: dict[str, object] = {name: getattr(self.options, name) for name in names}
        return found | {"dtype": self.subject.weights} | describe_machine(self.subject.device)
