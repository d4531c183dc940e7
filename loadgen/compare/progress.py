"""How a comparison goes on, on standard error: a line for every play, and on a terminal bars for what runs now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from loadgen.compare.plan import Contestant, Plan
from loadgen.compare.record import Play, Trouble
from loadgen.compare.secrets import hide
from loadgen.console import format_number
from loadgen.load.load import Observer
from loadgen.load.progress import RequestBar
from models.progress import Bars


class CompareProgress:
    """Shown while it is entered; the Watcher of a comparison."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bars = Bars(threaded=True)
        self._runs = self._bars.begin("runs", plan.rounds * len(plan.contestants) * len(plan.points))
        self._turn = ""

    def __enter__(self) -> CompareProgress:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def starting(self, contestant: Contestant, round: int) -> None:
        self._turn = f"round {round} of {self._plan.rounds}, {contestant.name}"
        doing = "starting the server" if contestant.strategy else f"connecting to {hide(contestant.url or '')}"
        self._runs.rename(f"runs ({self._turn}: {doing})")
        self._bars.say(f"{self._turn}: {doing}")

    @contextmanager
    def watch(self, title: str, total: int) -> Iterator[Observer]:
        """Show a bar for these requests."""
        self._runs.rename(f"runs ({self._turn})")
        bar = self._bars.begin(f"{self._turn}: {title}, {total} requests", total)
        try:
            yield RequestBar(bar)
        finally:
            self._bars.remove(bar)

    def played(self, play: Play) -> None:
        self._runs.advance()
        jct = play.figure("mean_jct_ms")
        told = "" if jct is None else f", mean JCT {format_number(jct / 1000)} s"
        counts = f"{play.figure('completed'):g} of {play.figure('num_prompts'):g} requests completed"
        rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
        self._bars.say(f"{self._turn}, {play.point.label}: {counts}, {rate}{told}")

    def left_out(self, trouble: Trouble) -> None:
        self._bars.say(f"{trouble.contestant} is left out from round {trouble.round} on: {trouble.message}", "red")
