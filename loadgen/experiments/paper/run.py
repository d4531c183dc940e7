"""Runs a paper's experiments, prints their tables and saves them as JSON after each experiment. Loads no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import orjson

from loadgen.console import table_console, tell_duration
from loadgen.experiments.paper import baton, magnus, scls, ssjf
from loadgen.experiments.paper.load import (
    LONGEST,
    Pool,
    chat_pool,
    outputs,
    sigma_for_accuracy,
    sigma_for_rmse,
    task_pool,
    trace_pool,
)
from loadgen.experiments.paper.options import Experiments
from loadgen.experiments.paper.plan import MINUTES_10, Experiment, Plan, Stage, carry_out, experiment_json
from loadgen.experiments.paper.report import make_page, report
from loadgen.experiments.paper.row import PUBLISHED
from loadgen.plot import require_drawing
from loadgen.result_file import require_writable, save
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from models.errors import INTERRUPTED
from models.progress import Bars

SEED_STEP = 100
"""Between the seeds of two runs: a point that is repeated takes as many seeds as it has repeats."""

Build: TypeAlias = Callable[[Stage], Plan]


@dataclass(frozen=True, slots=True)
class Paper:
    """The experiments of a paper, and the requests that they have by default."""

    experiments: Mapping[str, Build]
    pool: Callable[[int, float], Pool]  # lengths for a seed, prompts scaled
    longest: int = LONGEST  # tokens of the longest answer
    prediction: Callable[[Sequence[int]], Prediction] = lambda _: Prediction()  # as good as the paper's
    input_scale: float = 1.0  # factor of the prompts' lengths, unless the user says otherwise


PAPERS: Mapping[str, Paper] = MappingProxyType(
    {
        "magnus": Paper(
            magnus.EXPERIMENTS,
            task_pool,
            prediction=lambda lengths: Prediction(sigma_for_rmse(lengths, magnus.RMSE)),
        ),
        "scls": Paper(
            scls.EXPERIMENTS, lambda seed, scale: chat_pool(seed, input_scale=scale), input_scale=scls.INPUT_SCALE
        ),
        "ssjf": Paper(
            ssjf.EXPERIMENTS,
            lambda seed, scale: chat_pool(seed, ssjf.LONGEST, scale),
            ssjf.LONGEST,
            lambda lengths: Prediction(sigma_for_accuracy(lengths, ssjf.CUTS, ssjf.ACCURACY)),
        ),
        "baton": Paper(baton.EXPERIMENTS, lambda seed, scale: Pool((), baton.SOURCE)),
    }
)


def run_paper(asked: Experiments) -> int:
    """Run, print and save; returns the exit code, 130 after Ctrl-C. Raises UserError."""
    paper = PAPERS[asked.paper]
    chosen = asked.choose(list(paper.experiments))
    require_writable(asked.save_result)
    require_writable(asked.report, "--report")
    require_drawing(asked.report, "--report")
    stages = [_set_up(replace(asked, seed=asked.seed + SEED_STEP * run), paper) for run in range(asked.seeds)]
    console = table_console()
    console.print(f"requests: {stages[0].pool.source}", highlight=False)
    console.print(tell_duration(asked.seeds * _estimate(asked, chosen)), highlight=False)
    runs: list[dict[str, Experiment]] = [{} for _ in stages]
    interrupted = True
    try:
        for done, stage in zip(runs, stages, strict=True):
            for name in chosen:
                with Bars(latest_only=True) as bars:
                    stage.begin = partial(_begin, bars)
                    done[name] = carry_out(paper.experiments[name](stage), stage.play)
                if stage is stages[0]:
                    console.print(report(done[name]))
                if done[name].interrupted:
                    raise KeyboardInterrupt
        interrupted = False
    except KeyboardInterrupt:  # also between two runs, or in those that show what the baseline serves
        pass
    finally:  # a run that fails takes nothing from those before it
        if runs[0]:
            _save(asked, stages[0], runs[0], interrupted)
    if asked.report is not None and runs[0]:
        whole = [done for done in runs if done and not any(one.interrupted for one in done.values())]
        save(
            asked.report, make_page(f"{asked.paper}: measured beside published", whole or runs[:1]).encode(), "--report"
        )
    return INTERRUPTED if interrupted else 0


def _set_up(asked: Experiments, paper: Paper) -> Stage:
    scale = paper.input_scale if asked.input_scale is None else asked.input_scale
    if asked.tasks is not None:
        pool = magnus.read_pool(asked.tasks, asked.answers, asked.seed, scale)
    elif asked.trace is not None:
        pool = trace_pool(asked.trace, paper.longest, scale)
    else:
        pool = paper.pool(asked.seed, scale)
    prediction = paper.prediction(outputs(pool.lengths)) if pool.lengths else Prediction()
    return Stage(pool, asked, paper.longest, prediction)


def _estimate(asked: Experiments, chosen: Sequence[str]) -> float:
    """Seconds that the experiments take, by those that they took at full size on one core."""
    seconds = {(paper, name): took for paper, name, took in PUBLISHED["seconds"]}
    known = sum(seconds.get((asked.paper, name.removesuffix("-authors").removesuffix("-ds")), 1.0) for name in chosen)
    arrivals = 1.0 if asked.duration is None or asked.paper == "ssjf" else asked.duration / MINUTES_10
    return float(known * asked.scale * arrivals)


def _begin(bars: Bars, title: str, total: int) -> Watch:
    return bars.watch(f"{title}: {total} requests", total)


def _save(asked: Experiments, stage: Stage, done: Mapping[str, Experiment], interrupted: bool) -> None:
    """Write the file, if one is asked for, with a line a run and a row."""
    if asked.save_result is None:
        return
    names = ("paper", "scale", "seed", "duration", "input_scale", "rates")
    document = {
        **{name: getattr(asked, name) for name in names},
        "requests": stage.pool.source,
        "prediction_sigma": stage.prediction.sigma,
        "experiments": {name: experiment_json(one) for name, one in done.items()},
        "interrupted": interrupted,
    }
    text = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE).decode()
    for key in ('{"title":', '{"strategy":', '{"what":'):  # quotes within strings are escaped, so these are keys
        text = text.replace(key, "\n" + key)
    save(asked.save_result, text.encode(), "--save-result")
