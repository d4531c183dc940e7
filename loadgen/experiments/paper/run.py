"""Runs a paper's experiments; prints and saves after each. Loads no model."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import orjson

from loadgen.console import table_console, tell_duration
from loadgen.experiments.options import Experiments
from loadgen.experiments.paper import baton, magnus, scls, ssjf
from loadgen.experiments.paper.experiment import Experiment, Paper
from loadgen.experiments.paper.load import outputs, trace_pool
from loadgen.experiments.paper.report import make_page, report
from loadgen.experiments.paper.row import PUBLISHED
from loadgen.experiments.paper.trial import MINUTES_10, TrialStage
from loadgen.plot import require_report
from loadgen.result_file import require_writable, save
from loadgen.simulate.prediction import SimulatedPrediction
from models.errors import INTERRUPTED
from models.progress import Bars

SEED_STEP = 100  # between runs; repeats use seeds in between

PAPERS: Mapping[str, Paper] = {"magnus": magnus.PAPER, "scls": scls.PAPER, "ssjf": ssjf.PAPER, "baton": baton.PAPER}


def run_paper(asked: Experiments) -> int:
    """Returns the exit code, 130 after Ctrl-C. Raises UserError."""
    asked.refuse()
    paper = PAPERS[asked.paper]
    chosen = asked.choose(list(paper.experiments))
    require_writable(asked.save_result)
    require_report(asked.report)
    stages = [_set_up(replace(asked, seed=asked.seed + SEED_STEP * run), paper) for run in range(asked.seeds)]
    console = table_console()
    console.print(f"requests: {stages[0].pool.source}", highlight=False)
    console.print(tell_duration(asked.seeds * _estimate(asked, chosen)), highlight=False)
    runs: list[dict[str, Experiment]] = [{} for _ in stages]
    interrupted = True
    try:
        with suppress(KeyboardInterrupt):  # also between runs, and in those of baselines
            for done, stage in zip(runs, stages, strict=True):
                for name in chosen:
                    with Bars(latest_only=True) as bars:
                        stage.begin = bars.watch
                        done[name] = paper.experiments[name](stage).carry_out(stage.play)
                    if stage is stages[0]:
                        console.print(report(done[name]))
                    if done[name].interrupted:
                        raise KeyboardInterrupt
            interrupted = False
    finally:  # keep earlier results if a run fails
        if asked.save_result is not None and runs[0]:
            save(asked.save_result, _write_result(asked, stages[0], runs[0], interrupted), "--save-result")
    if asked.report is not None and runs[0]:
        whole = [done for done in runs if done and not any(one.interrupted for one in done.values())]
        page = make_page(f"{asked.paper}: measured beside published", whole or runs[:1])
        save(asked.report, page.encode(), "--report")
    return INTERRUPTED if interrupted else 0


def _set_up(asked: Experiments, paper: Paper) -> TrialStage:
    scale = paper.input_scale if asked.input_scale is None else asked.input_scale
    if asked.tasks is not None:
        pool = magnus.read_pool(asked.tasks, asked.answers, asked.seed, scale)
    elif asked.trace is not None:
        pool = trace_pool(asked.trace, paper.longest, scale)
    else:
        pool = paper.pool(asked.seed, scale)
    prediction = paper.prediction(outputs(pool.lengths)) if pool.lengths else SimulatedPrediction()
    return TrialStage(pool, asked, paper.longest, prediction)


def _estimate(asked: Experiments, chosen: Sequence[str]) -> float:
    seconds = {(paper, name): took for paper, name, took in PUBLISHED["seconds"]}
    known = sum(seconds.get((asked.paper, name.removesuffix("-authors").removesuffix("-ds")), 1.0) for name in chosen)
    arrivals = 1.0 if asked.duration is None or asked.paper == "ssjf" else asked.duration / MINUTES_10
    return float(known * asked.scale * arrivals)


def _write_result(asked: Experiments, stage: TrialStage, done: Mapping[str, Experiment], interrupted: bool) -> bytes:
    names = ("paper", "scale", "seed", "duration", "input_scale", "rates")
    document = {
        **{name: getattr(asked, name) for name in names},
        "requests": stage.pool.source,
        "prediction_sigma": stage.prediction.sigma,
        "experiments": {name: one.document for name, one in done.items()},
        "interrupted": interrupted,
    }
    text = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    for key in (b'{"title":', b'{"strategy":', b'{"what":'):  # quotes within strings are escaped, so these are keys
        text = text.replace(key, b"\n" + key)
    return text
