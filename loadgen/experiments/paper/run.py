"""Runs a paper's experiments, prints their tables and saves them as JSON. Loads no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from loadgen.console import table_console
from loadgen.experiments.paper.accuracy import sigma_for_accuracy, sigma_for_rmse
from loadgen.experiments.paper.baton import tables as baton
from loadgen.experiments.paper.hardware import Hardware
from loadgen.experiments.paper.load import LONGEST, Pool, chat_pool, outputs, shortened, task_pool, trace_pool
from loadgen.experiments.paper.magnus import serving as magnus
from loadgen.experiments.paper.magnus.tasks import read_pool
from loadgen.experiments.paper.options import PaperOptions
from loadgen.experiments.paper.page import make_page
from loadgen.experiments.paper.plan import Experiment, Plan, carry_out, experiment_json
from loadgen.experiments.paper.report import report
from loadgen.experiments.paper.scls import experiments as scls
from loadgen.experiments.paper.ssjf import experiments as ssjf
from loadgen.experiments.paper.ssjf.place import ACCURACY, CUTS
from loadgen.experiments.paper.ssjf.place import LONGEST as LONGEST_CHAT
from loadgen.experiments.paper.stage import Stage
from loadgen.experiments.paper.trial import Player
from loadgen.html.plot import require_drawing
from loadgen.result_file import require_writable, save, save_json
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.simulation import Watch
from models.errors import INTERRUPTED
from models.progress import Bars

SIMULATED_ONLY = (
    "-ds",
    "-authors",
    "case-study",
    "correlations",
    "learning",
    "overhead",
    "formulations",
    "azure-times",
)
"""Ends of the names of experiments that there are in the simulator only."""

Build: TypeAlias = Callable[[Stage], Plan]
OpenEngine: TypeAlias = Callable[[], tuple[Hardware, Player]]


@dataclass(frozen=True, slots=True)
class Paper:
    """The experiments of a paper, and the requests that they have by default."""

    experiments: Mapping[str, Build]
    pool: Callable[[int, float], Pool]
    """Lengths for a seed, prompts scaled."""
    longest: int = LONGEST
    """Tokens of the longest answer."""
    prediction: Callable[[Sequence[int]], Prediction] = lambda _: Prediction()
    """For these lengths, a predictor as good as the paper's."""
    input_scale: float = 1.0
    """Factor of the prompts' lengths, unless the user says otherwise."""

    def names(self, real: bool) -> list[str]:
        """The experiments that there are in the simulator, or on the real engine."""
        return [name for name in self.experiments if not (real and name.endswith(SIMULATED_ONLY))]


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
            lambda seed, scale: chat_pool(seed, LONGEST_CHAT, scale),
            LONGEST_CHAT,
            lambda lengths: Prediction(sigma_for_accuracy(lengths, CUTS, ACCURACY)),
        ),
        "baton": Paper(baton.EXPERIMENTS, lambda seed, scale: Pool((), baton.SOURCE)),
    }
)


def run_paper(asked: PaperOptions, open_engine: OpenEngine | None = None) -> int:
    """Run, print and save; returns the exit code, 130 after Ctrl-C, which leaves what was measured until then.

    Simulates unless the real engine can be opened. Raises UserError, and what opening and the engine raise.
    """
    paper = PAPERS[asked.paper]
    chosen = asked.choose(paper.names(real=open_engine is not None))
    require_writable(asked.save_result)
    require_writable(asked.report, "--report")
    require_drawing(asked.report, "--report")
    return _run_all({name: paper.experiments[name] for name in chosen}, _stage(asked, open_engine), asked)


def _stage(asked: PaperOptions, open_engine: OpenEngine | None) -> Stage:
    paper = PAPERS[asked.paper]
    scale = paper.input_scale if asked.input_scale is None else asked.input_scale
    pool = _pool(asked, paper, scale)
    prediction = paper.prediction(outputs(pool.lengths)) if pool.lengths else Prediction()
    if open_engine is None:
        return Stage(pool, asked, paper.longest, prediction)
    with Bars() as bars:
        bars.begin("loading the model")
        hardware, player = open_engine()
    short = shortened(pool, hardware.length_scale)
    return Stage(short, asked, hardware.tokens(paper.longest), prediction, player, hardware)


def _pool(asked: PaperOptions, paper: Paper, scale: float) -> Pool:
    if asked.tasks is not None:
        return read_pool(asked.tasks, asked.answers, asked.seed, scale)
    return paper.pool(asked.seed, scale) if asked.trace is None else trace_pool(asked.trace, paper.longest, scale)


def _run_all(builds: Mapping[str, Build], stage: Stage, asked: PaperOptions) -> int:
    """One experiment after another, each printed when it is over."""
    console = table_console()
    console.print(f"requests: {stage.pool.source}", highlight=False)
    done: dict[str, Experiment] = {}
    interrupted = True
    try:
        for name, build in builds.items():
            with Bars(latest_only=True) as bars:
                stage.begin = partial(_begin, bars)
                done[name] = carry_out(build(stage), stage.play, stage.rounds)
            console.print(report(done[name]))
            if done[name].interrupted:
                break
        else:
            interrupted = False
    except KeyboardInterrupt:  # between two runs, or in those that show what the baseline serves
        pass
    finally:  # a run that fails takes nothing from those before it
        if done:
            save_json(asked.save_result, _document(asked, stage, done, interrupted))
            if asked.report is not None:
                save(asked.report, make_page(asked.paper, [*done.values()]).encode(), "--report")
    return INTERRUPTED if interrupted else 0


def _begin(bars: Bars, title: str, total: int) -> Watch:
    return bars.watch(f"{title}: {total} requests", total)


def _document(
    asked: PaperOptions, stage: Stage, done: Mapping[str, Experiment], interrupted: bool
) -> dict[str, object]:
    """The file's content; lengths and what the real engine is stand there only if it was measured."""
    document = {
        "paper": asked.paper,
        "requests": stage.pool.source,
        "scale": asked.scale,
        "seed": asked.seed,
        "duration": asked.duration,
        "input_scale": asked.input_scale,
        "rates": asked.rates,
        "prediction_sigma": stage.prediction.sigma,
        "experiments": {name: experiment_json(one) for name, one in done.items()},
        "interrupted": interrupted,
    }
    return document if stage.hardware is None else document | {"real": asdict(stage.hardware)}
