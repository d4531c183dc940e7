"""From the flags of `lengthwise paper` to tables on the screen and a JSON file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.bench import result
from loadgen.bench.result import ResultError
from loadgen.console import table_console
from loadgen.experiments.paper import baton, magnus, published, scls, ssjf
from loadgen.experiments.paper.accuracy import sigma_for_accuracy, sigma_for_rmse
from loadgen.experiments.paper.load import LONGEST, Pool, chat_pool, outputs, task_pool, trace_pool
from loadgen.experiments.paper.report import report
from loadgen.experiments.paper.stage import Begin, Experiment, Setting, Stage, experiment_json
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import SimulationError, Watch
from loadgen.workload.errors import WorkloadError
from scheduler.assembly import StrategyError

Build = Callable[[Stage], Experiment]


class PaperError(Exception):
    """The experiments cannot be run or kept; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Paper:
    """How a paper's experiments are run."""

    experiments: Mapping[str, Build]
    pool: Callable[[int, float], Pool]
    """Lengths for a seed, prompts scaled, where the user has no trace."""
    longest: int = LONGEST
    """Tokens of the longest answer."""
    prediction: Callable[[Sequence[int]], Prediction] = lambda _: Prediction()
    """From lengths to what is known of them, as well as the paper's predictor does."""


PAPERS: Mapping[str, Paper] = MappingProxyType(
    {
        "magnus": Paper(
            magnus.EXPERIMENTS,
            task_pool,
            prediction=lambda lengths: Prediction(sigma_for_rmse(lengths, published.MAGNUS_RMSE)),
        ),
        "scls": Paper(scls.EXPERIMENTS, lambda seed, scale: chat_pool(seed, input_scale=scale)),
        "ssjf": Paper(
            ssjf.EXPERIMENTS,
            lambda seed, scale: chat_pool(seed, ssjf.LONGEST, scale),
            ssjf.LONGEST,
            lambda lengths: Prediction(sigma_for_accuracy(lengths, published.SSJF_CLASSES, published.SSJF_ACCURACY)),
        ),
        "baton": Paper(baton.EXPERIMENTS, lambda seed, scale: Pool((), baton.SOURCE)),
    }
)


def run_paper(args: argparse.Namespace) -> int:
    """Run, print and save; returns the exit code. Raises PaperError."""
    paper = PAPERS[args.paper]
    chosen = choose(list(paper.experiments), args.experiments)
    console = table_console()
    done: dict[str, Experiment] = {}
    try:
        if args.save_result is not None:
            result.prepare(args.save_result.parent)
        with _bars() as begin:
            pool = pool_of(args, paper)
            prediction = paper.prediction(outputs(pool.lengths)) if pool.lengths else Prediction()
            setting = Setting(args.scale, args.seed, args.duration, args.rates)
            stage = Stage(pool, setting, paper.longest, prediction, begin)
            console.print(f"requests: {pool.source}", highlight=False)
            for name in chosen:
                done[name] = paper.experiments[name](stage)
                console.print(report(done[name]))
        if args.save_result is not None:
            result.save(args.save_result, document(args, pool, prediction, done))
    except (WorkloadError, StrategyError, SimulationError, ResultError) as error:
        raise PaperError(str(error)) from error
    return 0


def choose(known: Sequence[str], names: Sequence[str] | None) -> Sequence[str]:
    """Which experiments to run, all unless there are names; raises PaperError for one that is not known."""
    if names is None:
        return known
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise PaperError(f"--experiments: {', '.join(unknown) or 'nothing'} is none of {', '.join(known)}")
    return names


def pool_of(args: argparse.Namespace, paper: Paper) -> Pool:
    """The requests that the flags ask for, unscaled; raises PaperError and WorkloadError."""
    if args.paper == "baton" and (args.trace is not None or args.input_scale != 1):
        raise PaperError("Baton's queries are drawn as its text says: leave --trace and --input-scale out")
    if args.trace is not None:
        return trace_pool(args.trace, paper.longest, args.input_scale)
    return paper.pool(args.seed, args.input_scale)


@contextmanager
def _bars() -> Iterator[Begin]:
    """A bar a run on a terminal, else a line as each begins."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=2, transient=True
    ) as bar:

        def begin(name: str, total: int) -> Watch:
            if not console.is_terminal:
                console.print(name, markup=False, highlight=False)
            for task in bar.task_ids:
                bar.remove_task(task)
            task = bar.add_task(name, total=total)

            def watch(ended: int) -> None:
                if ended % 100 == 0:  # each update takes a lock
                    bar.update(task, completed=ended)

            return watch

        yield begin


def document(
    args: argparse.Namespace, pool: Pool, prediction: Prediction, done: Mapping[str, Experiment]
) -> dict[str, object]:
    """What is written to a file."""
    return {
        "paper": args.paper,
        "requests": pool.source,
        "scale": args.scale,
        "seed": args.seed,
        "duration": args.duration,
        "input_scale": args.input_scale,
        "rates": args.rates,
        "prediction_sigma": prediction.sigma,
        "experiments": {name: experiment_json(one) for name, one in done.items()},
    }
