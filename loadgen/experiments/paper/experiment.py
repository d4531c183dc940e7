"""A paper's experiments as data, carried out point by point until interrupted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

from loadgen.experiments.paper.load import LONGEST, Pool
from loadgen.experiments.paper.row import PaperRuns, ReportRow, round_figures
from loadgen.experiments.paper.trial import Figures, TrialLine, TrialPoint, TrialStage
from loadgen.result_file import Json
from loadgen.simulate.prediction import SimulatedPrediction
from loadgen.turns import collect

FEW = 30  # requests of the papers' smallest run, Baton's Target-2


Rows = Callable[[PaperRuns], Sequence[ReportRow]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Points, strategies, and rows made of their figures; with results once carried out."""

    title: str
    setting: str  # machine, load, and assumptions
    figures: tuple[str, ...] = ()  # to show
    points: Sequence[TrialPoint] = ()
    strategies: Sequence[str] = ()
    compare: Rows = lambda runs: ()
    rows: Sequence[ReportRow] = ()  # at first those without runs
    sweeping: bool = False  # `compare` needs all points together
    lines: Sequence[TrialLine] = ()
    interrupted: bool = False  # results are incomplete

    def carry_out(self, play: Callable[[str, TrialPoint], Figures]) -> Self:
        """Ctrl-C keeps what ran, with rows for complete points."""
        runs = product(self.points, self.strategies)
        lines, whole = collect(TrialLine(name, point, play(name, point)) for point, name in runs)
        ran = [line.point.label for line in lines]
        complete = [line for line in lines if ran.count(line.point.label) == len(self.strategies)]
        told = complete and (whole or not self.sweeping)
        rows = [*(self.compare(PaperRuns(complete)) if told else ()), *self.rows]
        return replace(self, lines=lines, rows=rows, interrupted=not whole)

    @property
    def warning(self) -> str | None:
        """Why to trust its figures little; None without a reason."""
        fewest = min((line.figures["requests"] for line in self.lines), default=FEW)
        if fewest >= FEW:
            return None
        requests = "request" if fewest == 1 else "requests"
        return (
            f"Warning: runs of as few as {fewest:g} {requests} are compared here. With fewer than {FEW}, figures show "
            "chance rather than the strategies: raise --scale, --duration or --rates."
        )

    @property
    def document(self) -> Json:
        lines = ((line.strategy, line.point.label, round_figures(line.figures)) for line in self.lines)
        runs = [{"strategy": name, "point": point} | figures for name, point, figures in lines]
        rows = [row.document for row in self.rows]
        return {"title": self.title, "setting": self.setting, "warning": self.warning, "runs": runs, "rows": rows}


@dataclass(frozen=True, slots=True)
class Paper:
    experiments: Mapping[str, Callable[[TrialStage], Experiment]]
    pool: Callable[[int, float], Pool]  # (seed, prompt scale) -> lengths
    longest: int = LONGEST  # tokens of an answer
    # as good as the paper's
    prediction: Callable[[Sequence[int]], SimulatedPrediction] = lambda _: SimulatedPrediction()
    input_scale: float = 1.0  # of prompts, by default
