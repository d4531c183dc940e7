"""From the flags of `lengthwise paper --real` to tables on the screen and a JSON file. Loads no model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TypeAlias

from loadgen.bench import result
from loadgen.console import table_console
from loadgen.experiments.engine.bars import Bars
from loadgen.experiments.paper.load import Pool, outputs, shortened
from loadgen.experiments.paper.real import magnus, scls, ssjf
from loadgen.experiments.paper.real.ground import Ground
from loadgen.experiments.paper.real.options import refuse_simulated
from loadgen.experiments.paper.real.plan import Plan, carry_out
from loadgen.experiments.paper.report import report
from loadgen.experiments.paper.run import PAPERS, choose, document, pool_of
from loadgen.experiments.paper.stage import Begin, Experiment, Setting, Stage
from loadgen.experiments.paper.trial import Player
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch

INTERRUPTED = 130

Build: TypeAlias = Callable[[Stage, Ground], Plan]
Open: TypeAlias = Callable[[], tuple[Ground, Player]]
"""Loads what is to be measured."""

EXPERIMENTS: Mapping[str, Mapping[str, Build]] = MappingProxyType(
    {"magnus": magnus.EXPERIMENTS, "scls": scls.EXPERIMENTS, "ssjf": ssjf.EXPERIMENTS}
)
EXECUTORS: Mapping[str, int] = MappingProxyType({"magnus": 1, "scls": 2, "ssjf": 1})
"""On a CPU, unless the user says: SCLS balances load, which takes two at least."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and with which requests."""

    ground: Ground
    player: Player
    pool: Pool
    prediction: Prediction


def run_real(args: argparse.Namespace, open_engine: Open) -> int:
    """Measure, print and save; returns the exit code, 130 after Ctrl-C, which leaves what was measured until then.

    Raises PaperError, WorkloadError and ResultError, and what the engine raises.
    """
    refuse_simulated(args)
    builds = EXPERIMENTS[args.paper]
    chosen = choose(list(builds), args.experiments)
    if args.save_result is not None:
        result.prepare(args.save_result.parent)
    paper = PAPERS[args.paper]
    pool = pool_of(args, paper)
    prediction = paper.prediction(outputs(pool.lengths))
    with Bars() as bars:
        bars.begin("loading the model")
        ground, player = open_engine()
    subject = Subject(ground, player, shortened(pool, ground.length_scale), prediction)
    done: dict[str, Experiment] = {}
    interrupted = True
    try:
        interrupted = _run_all({name: builds[name] for name in chosen}, subject, _stage(subject, args), done)
    except KeyboardInterrupt:  # between two runs, or in those that show what the baseline serves
        pass
    finally:  # a run that fails takes nothing from those before it
        if args.save_result is not None and done:
            result.save(args.save_result, _document(args, subject, done, interrupted))
    return INTERRUPTED if interrupted else 0


def _stage(subject: Subject, args: argparse.Namespace) -> Stage:
    longest = subject.ground.tokens(PAPERS[args.paper].longest)
    setting = Setting(seed=args.seed, duration=args.duration)
    return Stage(subject.pool, setting, longest, subject.prediction, player=subject.player)


def _run_all(builds: Mapping[str, Build], subject: Subject, stage: Stage, done: dict[str, Experiment]) -> bool:
    """One experiment after another, each printed when it is over; returns whether one was interrupted."""
    console = table_console()
    console.print(f"requests: {subject.pool.source}", highlight=False)
    for name, build in builds.items():
        with _bars() as stage.begin:
            done[name] = carry_out(stage, build(stage, subject.ground), subject.ground.rounds)
        console.print(report(done[name]))
        if done[name].interrupted:
            return True
    return False


@contextmanager
def _bars() -> Iterator[Begin]:
    """A bar a run on a terminal, else a line as each begins; drawn between reports, not by a thread."""
    with Bars() as bars:

        def begin(name: str, total: int) -> Watch:
            bars.begin(f"{name}: {total} requests", total)
            seen = 0

            def watch(ended: int) -> None:
                nonlocal seen
                bars.advance(ended - seen)
                seen = ended

            return watch

        yield begin


def _document(
    args: argparse.Namespace, subject: Subject, done: Mapping[str, Experiment], interrupted: bool
) -> dict[str, object]:
    real = {"real": asdict(subject.ground), "interrupted": interrupted}
    return document(args, subject.pool, subject.prediction, done) | real
