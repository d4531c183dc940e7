"""Parts of tests of the papers' experiments: a small pool, a stage on it, a point, and a trial by hand."""

from typing import Any

from engine.simulated.machine import Machine
from loadgen.experiments.options import Experiments
from loadgen.experiments.paper.load import PaperLoad, Pool
from loadgen.experiments.paper.row import FIGURES
from loadgen.experiments.paper.trial import Figures, TrialLine, TrialPoint, TrialStage, limits
from loadgen.simulate.prediction import SimulatedPrediction
from loadgen.workload.lengths import RequestLengths
from scheduler.serving_time.bilinear import Bilinear

COST = Bilinear(p1=1e-4, p2=0.0, p3=0.0, p4=0.01, d1=1e-6, d2=1e-4, d3=0.0, d4=0.01)
MACHINE = Machine(COST, 4 * 256, 64, 256)
POOL = Pool(tuple(RequestLengths(0.0, 5 + 7 * number % 120, 1 + 11 * number % 60) for number in range(50)), "made up")


def stage_of(pool: Pool = POOL, **setting: Any) -> TrialStage:
    return TrialStage(pool, Experiments(**{"duration": 4.0, **setting}), 128, SimulatedPrediction(0.1))


def point_at(label: str, rate: float = 1.0, **changes: Any) -> TrialPoint:
    return TrialPoint(**{"label": label, "machine": MACHINE, "load": PaperLoad(rate, 3), "limits": limits(), **changes})


def trial_of(**figures: float) -> Figures:
    return dict.fromkeys(FIGURES, 1.0) | figures


def line(strategy: str, label: str = "20/s", x: float = 0.0, **figures: float) -> TrialLine:
    return TrialLine(strategy, point_at(label, x=x), trial_of(**figures))
