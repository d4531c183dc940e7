"""A paper's experiments as data, and how one is carried out: point by point, as far as an interrupt lets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from loadgen.experiments.paper.load import LONGEST, Pool
from loadgen.experiments.paper.row import Row, Runs, round_figure
from loadgen.experiments.paper.trial import Figures, Line, Point, Stage
from loadgen.result_file import Json
from loadgen.simulate.prediction import Prediction

FEW = 30  # requests of the smallest run that any of the papers tells of: Baton's Target-2


Rows: TypeAlias = Callable[[Runs], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: its points, the strategies that run at each, and the rows made of their figures; and once it was
    carried out, the figures and the rows."""

    title: str
    setting: str  # machine, load, and what was assumed where the text says nothing
    figures: tuple[str, ...] = ()  # the figures of a run to show
    points: Sequence[Point] = ()
    strategies: Sequence[str] = ()
    compare: Rows = lambda runs: ()
    rows: Sequence[Row] = ()  # at first those that no run tells: of requests alone, and what cannot be measured here
    sweeping: bool = False  # whether `compare` speaks of all points together, so that some of them tell nothing
    lines: Sequence[Line] = ()
    interrupted: bool = False  # whether it was broken off, so that this is not all of it

    def carry_out(self, play: Callable[[str, Point], Figures]) -> Experiment:
        """Play every strategy at every point. Ctrl-C leaves what was run until then, with rows for complete points."""
        lines: list[Line] = []
        interrupted = False
        try:
            for point, name in product(self.points, self.strategies):
                lines.append(Line(name, point, play(name, point)))
        except KeyboardInterrupt:
            interrupted = True
        ran = [line.point.label for line in lines]
        complete = [line for line in lines if ran.count(line.point.label) == len(self.strategies)]
        told = complete and not (self.sweeping and interrupted)
        rows = [*(self.compare(Runs(complete)) if told else ()), *self.rows]
        return replace(self, lines=lines, rows=rows, interrupted=interrupted)

    @property
    def warning(self) -> str | None:
        """A reason to trust its figures little; None where there is none."""
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
        """Lines with all their figures, and the rows."""
        return {
            "title": self.title,
            "setting": self.setting,
            "warning": self.warning,
            "runs": [
                {"strategy": line.strategy, "point": line.point.label}
                | {name: round_figure(value) for name, value in line.figures.items()}
                for line in self.lines
            ],
            "rows": [row.document for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Paper:
    """The experiments of a paper, and the requests that they have by default."""

    experiments: Mapping[str, Callable[[Stage], Experiment]]
    pool: Callable[[int, float], Pool]  # lengths for a seed, prompts scaled
    longest: int = LONGEST  # tokens of the longest answer
    prediction: Callable[[Sequence[int]], Prediction] = lambda _: Prediction()  # as good as the paper's
    input_scale: float = 1.0  # factor of the prompts' lengths, unless the user says otherwise
