"""A comparison as plain data: its plan, decided before anything runs, and every run of every round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.compare.flags import CompareFlags


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server of ours with one strategy, which is started for each turn, or one at a URL that runs already."""

    name: str
    strategy: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One load of the sweep."""

    rate: float | None = None
    """Requests per second, infinity: all at once; None: as the workload has it."""
    burstiness: float = 1.0

    @property
    def label(self) -> str:
        if self.rate is None:
            return "the workload's own times"
        if self.rate == float("inf"):
            return "all at once"
        requests = "request" if self.rate == 1 else "requests"
        bursts = "" if self.burstiness == 1 else f", burstiness {self.burstiness:g}"
        return f"{self.rate:g} {requests}/s{bursts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a comparison does."""

    contestants: tuple[Contestant, ...]
    points: tuple[Point, ...]
    flags: CompareFlags
    baseline: str
    """The contestant that the others are held against."""
    serve_command: tuple[str, ...] = ()
    """The command that starts a server of ours, without its strategy."""
    fields: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of requests to servers at URLs."""

    def command(self, contestant: Contestant) -> list[str]:
        """The command that starts a contestant of ours."""
        assert contestant.strategy is not None
        return [*self.serve_command, "--strategy", contestant.strategy]

    def find_seed(self, number: int) -> int:
        """The seed of a round, counted from 1, of whose requests and arrivals each contestant gets the same."""
        return self.flags.seed + number - 1

    def list_turns(self) -> Iterator[tuple[int, Contestant]]:
        """Each round, counted from 1, with each contestant.

        Every round begins with the next of them, so that slow changes of the machine meet all of them alike.
        """
        for number in range(self.flags.rounds):
            for contestant in rotate(self.contestants, number):
                yield number + 1, contestant


def rotate(contestants: Sequence[Contestant], by: int) -> tuple[Contestant, ...]:
    """The contestants in their order, beginning `by` places later."""
    start = by % len(contestants)
    return (*contestants[start:], *contestants[:start])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a comparison ran."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    flags: Mapping[str, object]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One run of the trace by one contestant, under one load."""

    contestant: str
    round: int
    point: Point
    figures: Mapping[str, object]
    """Name in the result of `lengthwise bench`, or of the server's own figures where it tells any -> value."""
    latencies: tuple[float, ...] = ()
    """Job completion times in seconds, ascending."""
    predictions: tuple[tuple[float, int], ...] = ()
    """Predicted and actual output tokens of the requests of which the server told a prediction."""
    errors: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the run was played to its end: only then it counts."""
        return not self.figures.get("interrupted")

    def figure(self, key: str) -> float | None:
        """A figure by its key; None where there is no such figure."""
        value = self.figures.get(key)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a contestant was left out from a round on."""

    contestant: str
    round: int
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison and all its runs, also while it still goes on."""

    plan: Plan
    plays: tuple[Play, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    interrupted: bool = False

    def rounds_finished(self, contestant: Contestant) -> int:
        """The number of rounds in which a contestant played every load to its end."""
        rounds = [[play.round for play in self.whole_plays(contestant, point)] for point in self.plan.points]
        return len(set.intersection(*map(set, rounds)))

    def whole_plays(self, contestant: Contestant, point: Point) -> tuple[Play, ...]:
        """The runs that were played to their end, in the order of the rounds."""
        return tuple(
            play for play in self.plays if play.whole and (play.contestant, play.point) == (contestant.name, point)
        )

    def by_round(self, contestant: Contestant, point: Point, key: str) -> dict[int, float]:
        """A figure by round, of those that were played to their end, as far as it is known."""
        figures = {play.round: play.figure(key) for play in self.whole_plays(contestant, point)}
        return {number: value for number, value in figures.items() if value is not None}

    def values(self, contestant: Contestant, point: Point, key: str) -> tuple[float, ...]:
        """A figure of each round that was played to its end, as far as it is known."""
        return tuple(self.by_round(contestant, point, key).values())
