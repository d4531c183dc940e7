"""How a comparison goes on, on standard error: a line for every play, and on a terminal bars for what runs now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.client.outcome import Outcome
from loadgen.compare.plan import Contestant, Plan
from loadgen.compare.record import Play, Trouble
from loadgen.compare.secrets import hide
from loadgen.console import format_number
from loadgen.load.load import Observer

LINE_INTERVAL = 10.0


class CompareProgress:
    """Shown while it is entered; the Watcher of a comparison."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # A slow rhythm: drawing takes the CPU that reading answers needs.
        self._bar = Progress(
            *columns, console=self._console, disable=not self._console.is_terminal, refresh_per_second=2
        )
        turns = plan.rounds * len(plan.contestants)
        self._all = self._bar.add_task("runs", total=turns * len(plan.points))
        self._turn = ""

    def __enter__(self) -> CompareProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def starting(self, contestant: Contestant, round: int) -> None:
        self._turn = f"round {round} of {self._plan.rounds}, {contestant.name}"
        doing = "starting the server" if contestant.strategy else f"connecting to {hide(contestant.url or '')}"
        self._bar.update(self._all, description=escape(f"runs ({self._turn}: {doing})"))
        self._say(f"{self._turn}: {doing}")

    @contextmanager
    def watch(self, title: str, total: int) -> Iterator[Observer]:
        """A bar of its own for these requests, or a line where there is no terminal."""
        if self._bar.disable:
            self._say(f"{self._turn}: {title}, {total} requests")
        self._bar.update(self._all, description=escape(f"runs ({self._turn})"))
        task = self._bar.add_task(escape(title), total=total)

        def show(ended: int) -> None:
            self._bar.update(task, completed=ended)

        try:
            yield _Requests(self, title, total, show)
        finally:
            self._bar.remove_task(task)

    def played(self, play: Play) -> None:
        self._bar.advance(self._all)
        jct = play.figure("mean_jct_ms")
        told = "" if jct is None else f", mean JCT {format_number(jct / 1000)} s"
        counts = f"{play.figure('completed'):g} of {play.figure('num_prompts'):g} requests completed"
        rate = f"{format_number(play.figure('request_throughput') or 0.0)} requests/s"
        self._say(f"{self._turn}, {play.point.label}: {counts}, {rate}{told}")

    def left_out(self, trouble: Trouble) -> None:
        self._say(f"{trouble.contestant} is left out from round {trouble.round} on: {trouble.message}", "red")

    def lingers(self, title: str, ended: int, total: int) -> None:
        """Where there is no terminal, a long run says from time to time that it lives."""
        if self._bar.disable:
            self._say(f"{self._turn}, {title}: {ended} of {total} requests")

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


class _Requests:
    """Counts the requests of one run; an Observer."""

    def __init__(self, progress: CompareProgress, title: str, total: int, show: Callable[[int], None]) -> None:
        self._progress = progress
        self._title = title
        self._total = total
        self._show = show
        self._ended = 0
        self._said = time.monotonic()

    def sent(self) -> None:
        pass

    def ended(self, outcome: Outcome) -> None:
        self._ended += 1
        self._show(self._ended)
        if time.monotonic() - self._said >= LINE_INTERVAL:
            self._said = time.monotonic()
            self._progress.lingers(self._title, self._ended, self._total)
