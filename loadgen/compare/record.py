"""The record of a comparison: every run of every round, and what went wrong. Plain data; knows no page and no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.compare.plan import Contestant, Plan, Point


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
