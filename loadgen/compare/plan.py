"""The plan of a comparison: contestants, loads and their order. Plain data, decided before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

LEAST_ROUNDS = 3
"""The fewest rounds whose spread means something."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server of ours with one strategy, which is started for each turn, or one at a URL that runs already."""

    name: str
    look: int
    """Selects its colour and mark in every plot."""
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
    rounds: int = LEAST_ROUNDS
    baseline: str
    """The contestant that the others are held against."""
    seed: int = 0
    serve_command: tuple[str, ...] = ()
    """The command that starts a server of ours, without its strategy."""
    model: str | None = None
    """The model that servers at URLs are asked for; None takes the first that each lists."""
    fields: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of requests to servers at URLs."""
    timeout: float = 600.0
    ready_timeout: float = 600.0
    max_concurrency: int | None = None
    num_warmups: int = 4

    def command(self, contestant: Contestant) -> list[str]:
        """The command that starts a contestant of ours."""
        assert contestant.strategy is not None
        return [*self.serve_command, "--strategy", contestant.strategy]

    def find_seed(self, number: int) -> int:
        """The seed of a round, counted from 1, of whose requests and arrivals each contestant gets the same."""
        return self.seed + number - 1

    def list_turns(self) -> Iterator[tuple[int, Contestant]]:
        """Each round, counted from 1, with each contestant.

        Every round begins with the next of them, so that slow changes of the machine meet all of them alike.
        """
        for number in range(self.rounds):
            for contestant in rotate(self.contestants, number):
                yield number + 1, contestant


def rotate(contestants: Sequence[Contestant], by: int) -> tuple[Contestant, ...]:
    """The contestants in their order, beginning `by` places later."""
    start = by % len(contestants)
    return (*contestants[start:], *contestants[:start])
