"""Carries out `lengthwise bench engine`: loads, measures the parts that were asked for, one after another."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from transformers import PreTrainedModel

from loadgen.experiments.engine.apart import apart
from loadgen.experiments.engine.contest import Standing, contest
from loadgen.experiments.engine.floor import Floor, measure_bandwidth, weight_bytes
from loadgen.experiments.engine.job import ROWS, Job, even_jobs, longest, ragged_jobs
from loadgen.experiments.engine.overhead import measure_overhead
from loadgen.experiments.engine.report import GridResult, Results
from loadgen.experiments.engine.runners import Generate, GenerateBatch, Lengthwise, Runner
from loadgen.experiments.engine.setup import Subject, load_beside, load_plain, load_subject, machine
from models.progress import Bars

OVERHEAD_ROWS = 32

Clock = Callable[[], float]


def run_bench(args: argparse.Namespace, clock: Clock = time.perf_counter) -> Results:
    """Raises UserError with the remedy."""
    with Bars() as bars:
        bars.begin(f"loading {args.model}")
        subject = apart(
            lambda _: load_subject(args.model, dtype=args.dtype, device=args.device, quantization=args.quantization)
        )
        beside = {kind: apart(partial(_load_beside, subject, kind)) for kind in args.beside}
        return Bench(args, subject, bars, clock, beside).run()


def _load_beside(subject: Subject, kind: str, _: threading.Event) -> Subject:
    return load_beside(subject, kind)


class Bench:
    """The parts of one run, on one model."""

    def __init__(
        self,
        args: argparse.Namespace,
        subject: Subject,
        bars: Bars,
        clock: Clock,
        beside: Mapping[str, Subject],
    ) -> None:
        self._args = args
        self._subject = subject
        self._beside = beside
        self._bars = bars
        self._clock = clock

    def run(self) -> Results:
        args = self._args
        rows: Sequence[int] = args.rows or (() if args.ragged or args.overhead else ROWS)
        self._refuse_long(rows)
        plain = apart(lambda _: load_plain(self._subject)) if rows or args.ragged else None
        floor = self._floor() if rows else None
        return Results(
            setting=self._setting(),
            floor=floor,
            grid=tuple(self._grid(plain, floor, count) for count in rows if plain is not None and floor is not None),
            ragged=tuple(self._ragged(plain)) if plain is not None and args.ragged else (),
            overhead=measure_overhead(self._subject, self._even(OVERHEAD_ROWS, 0), self._clock)
            if args.overhead
            else None,
        )

    def _refuse_long(self, rows: Sequence[int]) -> None:
        """Also what cannot be drawn, before anything takes long."""
        if rows or self._args.overhead:
            self._subject.require_context(self._args.input_len + self._args.output_len)
        if self._args.ragged:
            self._subject.require_context(longest(self._uneven(0)))

    def _floor(self) -> Floor:
        self._bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(self._subject.device, self._clock)
        return Floor(bandwidth, weight_bytes(self._subject.model.network), self._subject.model.kv.bytes_per_token)

    def _grid(self, plain: PreTrainedModel, floor: Floor, rows: int) -> GridResult:
        standings = self._contest(f"{rows} rows", self._runners(plain, rows), lambda number: self._even(rows, number))
        return GridResult(rows, floor.step(rows, self._args.input_len, self._args.output_len), tuple(standings))

    def _ragged(self, plain: PreTrainedModel) -> list[Standing]:
        return self._contest("ragged", self._runners(plain, self._args.slots), self._uneven)

    def _contest(self, title: str, runners: Sequence[Runner], jobs: Callable[[int], Sequence[Job]]) -> list[Standing]:
        rounds = self._args.rounds
        self._bars.begin(title, len(runners) * (rounds + 1))
        return contest(runners, jobs, rounds, self._subject.device, lambda _: self._bars.advance())

    def _runners(self, plain: PreTrainedModel, slots: int) -> tuple[Runner, ...]:
        return (
            Lengthwise(self._subject, slots, self._clock),
            *(Lengthwise(one, slots, self._clock, name=f"lengthwise {kind}") for kind, one in self._beside.items()),
            Generate(plain, slots, self._clock),
            GenerateBatch(plain, slots, self._clock),
        )

    def _even(self, rows: int, number: int) -> list[Job]:
        rng = random.Random(f"{self._args.seed} {number}")
        return even_jobs(rng, self._subject.vocab, rows, self._args.input_len, self._args.output_len)

    def _uneven(self, number: int) -> list[Job]:
        """The same lengths in the same order each round, else rounds could not be compared; other tokens."""
        args = self._args
        lengths = ragged_jobs(random.Random(args.seed), 1, args.num_requests, args.min_len, args.max_len)
        rng = random.Random(f"{args.seed} {number}")
        shapes = ((len(job.prompt), job.output_len) for job in lengths)
        return [job for ins, outs in shapes for job in even_jobs(rng, self._subject.vocab, 1, ins, outs)]

    def _setting(self) -> dict[str, object]:
        names = ("input_len", "output_len", "rounds", "seed", "num_requests", "min_len", "max_len", "slots")
        found: dict[str, object] = {name: getattr(self._args, name) for name in names}
        found |= {"model": self._args.model, "dtype": self._subject.weights}
        return found | machine(self._subject.device)
