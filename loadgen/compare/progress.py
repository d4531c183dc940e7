"""The progress of a comparison on standard error: a line for every play, and on a terminal a bar for what runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.compare.plan import Contestant, Plan
from loadgen.compare.record import Play, Trouble
from loadgen.compare.secrets import hide
from loadgen.console import format_number
from loadgen.load.load import Observer
from loadgen.load.progress import RequestBar
from models.progress import Bars


class CompareProgress:
    """Is notified as a comparison goes on, and shows it in bars that are entered elsewhere."""

    def __init__(self, plan: Plan, bars: Bars) -> None:
        self._plan = plan
        self._bars = bars
        self._runs = bars.begin("runs", plan.rounds * len(plan.contestants) * len(plan.points))
        self._turn = ""

    def starting(self, contestant: Contestant, round: int) -> None:
        """Show that a contestant's turn begins."""
        self._turn = f"round {round} of {self._plan.rounds}, {contestant.name}"
        doing = "starting the server" if contestant.strategy else f"connecting to {hide(contestant.url or '')}"
        self._runs.rename(f"runs ({self._turn}: {doing})")
        self._bars.say(f"{self._turn}: {doing}")

    @contextmanager
    def watch(self, title: str, total: int) -> Iterator[Observer]:
        """Show a bar while `total` requests are sent."""
        self._runs.rename(f"runs ({self._turn})")
        bar = self._bars.begin(f"{self._turn}: {title}, {total} requests", total)
        try:
            yield RequestBar(bar)
        finally:
            self._bars.remove(bar)

    def played(self, play: Play) -> None:
        """Print a line about a play that has ended."""
        self._runs.advance()
        jct = play.figure("mean_jct_ms")
        told = "" if jct is None else f", mean JCT {format_number(jct / 1000)} s"
        counts = f"{play.figure('completed'):g} of {play.figure('num_prompts'):g} requests completed"
        rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
        self._bars.say(f"{self._turn}, {play.point.label}: {counts}, {rate}{told}")

    def left_out(self, trouble: Trouble) -> None:
        """Print why a contestant will not be asked again."""
        self._bars.say(f"{trouble.contestant} is left out from round {trouble.round} on: {trouble.message}", "red")
