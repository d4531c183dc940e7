"""A comparison as data. Differences are real by Student's t on paired changes over rounds."""

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from loadgen.console import COLUMNS, TABLES, Better, Column
from loadgen.options import LEAST_ROUNDS, CompareFlags
from loadgen.result_file import PROGRAM
from models.errors import UsageError
from scheduler.assembly import find_strategies


@dataclass(frozen=True, slots=True)
class Contestant:
    """One strategy's server, started for each turn, or a server at a URL."""

    name: str
    strategy: str | None = None
    command: str | None = None  # that starts it in a shell
    url: str | None = None


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load of the sweep."""

    rate: float | None = None  # requests/s; infinity: all at once; None: the workload's
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
class CompareSetting:
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    flags: Mapping[str, object]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One run of the trace by one contestant under one load."""

    contestant: str
    round: int
    point: LoadPoint
    figures: Mapping[str, object]  # by name in `lengthwise bench`, or `server_mean_batch_rows`
    latencies: tuple[float, ...] = ()  # job completion times in seconds, ascending
    errors: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Only runs that were played to the end count."""
        return not self.figures.get("interrupted")

    def figure(self, key: str) -> float | None:
        return COLUMNS[key].read(self.figures)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a contestant was left out from a round on."""

    contestant: str
    round: int
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan and all runs so far."""

    flags: CompareFlags
    contestants: tuple[Contestant, ...]  # the first is the baseline
    points: tuple[LoadPoint, ...]
    plays: tuple[Play, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    interrupted: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.contestants)

    def rounds_finished(self, name: str) -> int:
        rounds = [[play.round for play in self.whole_plays(name, point)] for point in self.points]
        return len(set.intersection(*map(set, rounds)))

    def whole_plays(self, name: str, point: LoadPoint) -> tuple[Play, ...]:
        """In order of the rounds."""
        return tuple(play for play in self.plays if play.whole and (play.contestant, play.point) == (name, point))

    def by_round(self, name: str, point: LoadPoint, key: str) -> dict[int, float]:
        """Of whole plays, as far as known."""
        figures = {play.round: play.figure(key) for play in self.whole_plays(name, point)}
        return {number: value for number, value in figures.items() if value is not None}

    def count_lost(self, name: str, point: LoadPoint) -> float:
        """Failed or rejected, in all rounds."""
        return sum(sum(self.by_round(name, point, key).values()) for key in ("failed", "rejected"))


OURS = ("--strategy", "--host", "--port", "--allow-replay", "--api-key")  # flags of `serve` that the comparison sets


def plan(asked: CompareFlags) -> Comparison:
    """Raises UserError."""
    contestants = _contestants(asked)
    if asked.model is not None and not asked.strategies:
        raise UsageError(f"{asked.model}: only --strategies start servers; to ask those of --urls for it, give --model")
    return Comparison(asked, contestants, _points(asked.request_rates, asked.burstinesses))


def _contestants(asked: CompareFlags) -> tuple[Contestant, ...]:
    find_strategies(asked.strategies)
    if len(asked.strategies) + len(asked.urls) < 2:
        raise UsageError("there is nothing to compare: name two or more with --strategies A,B or --urls NAME=URL,...")
    found: dict[str, Contestant] = {}
    for place, strategy in enumerate(asked.strategies):
        before = asked.strategies[:place].count(strategy)
        name = f"{strategy} ({before + 1})" if before else strategy
        found[name] = Contestant(name, strategy, _serve_command(asked.model, asked.serve_args, strategy))
    for name, url in asked.urls:
        if name in found:
            raise UsageError(f"--urls: the name {name} is taken: choose another")
        found[name] = Contestant(name, url=url)
    return tuple(found.values())


def _points(rates: Sequence[float] | None, burstinesses: Sequence[float]) -> tuple[LoadPoint, ...]:
    if rates is None:
        if tuple(burstinesses) != (1.0,):
            raise UsageError("--burstinesses needs --request-rates")
        return (LoadPoint(),)
    finite = sorted({rate for rate in rates if rate != math.inf})
    at_once = [LoadPoint(math.inf)] if math.inf in rates else []  # without burstiness
    return (*(LoadPoint(rate, burstiness) for burstiness in sorted(set(burstinesses)) for rate in finite), *at_once)


def _serve_command(model: str | None, serve_args: str, strategy: str) -> str:
    try:
        further = shlex.split(serve_args)
    except ValueError as error:
        raise UsageError(f"--serve-args {serve_args!r}: {error}") from None
    for flag in (word.partition("=")[0] for word in further):
        if flag in OURS:
            raise UsageError(f"--serve-args: leave {flag} out, the comparison sets it")
    command = [*PROGRAM, "serve", *([model] if model else []), "--host", "127.0.0.1", "--port", "0", "--allow-replay"]
    return shlex.join((*command, *further, "--strategy", strategy))


CONFIDENCE = 0.95  # of a change's bounds

Outcome = Literal["better", "worse", "not shown", "no verdict"]


class MeanChange(NamedTuple):
    """A contestant's distance from another, with bounds of CONFIDENCE."""

    typical: float
    low: float
    high: float
    relative: bool  # shares, -0.1 for 10 % less; else in the quantity's unit

    @property
    def shown(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Verdict:
    contestant: str
    baseline: str
    point: LoadPoint
    quantity: Column
    outcome: Outcome
    text: str


def judge_all(comparison: Comparison) -> list[Verdict]:
    """All pairs with figures, baseline pairs first."""
    return [
        verdict
        for base, other in combinations(comparison.names, 2)
        for point in comparison.points
        for quantity in map(COLUMNS.__getitem__, TABLES["judged"])
        if (verdict := _judge_quantity(comparison, other, base, point, quantity)) is not None
    ]


def _judge_quantity(
    comparison: Comparison, contestant: str, baseline: str, point: LoadPoint, quantity: Column
) -> Verdict | None:
    own, base = (comparison.by_round(one, point, quantity.key) for one in (contestant, baseline))
    if not own or not base:
        return None
    pairs = [(own[number], base[number]) for number in sorted(own.keys() & base.keys())]
    outcome, text = judge(pairs, quantity.better or "lower")
    lost = sum(comparison.count_lost(one, point) for one in (contestant, baseline))
    if quantity.only_completed and lost and outcome != "no verdict":
        outcome, text = "no verdict", f"no verdict: {lost:g} requests did not complete, and this counts completed ones"
    return Verdict(contestant, baseline, point, quantity, outcome, text)


def judge(pairs: Sequence[tuple[float, float]], better: Better) -> tuple[Outcome, str]:
    if len(pairs) < LEAST_ROUNDS:
        return "no verdict", f"no verdict: {len(pairs)} of at least {LEAST_ROUNDS} rounds"
    change = find_change(pairs)
    if not change.shown:
        return "not shown", f"no difference shown ({_write_bounds(change)})"
    outcome: Outcome = "better" if (change.low > 0) == (better == "higher") else "worse"
    return outcome, f"{outcome}: {_write_change(change.typical, change.relative)} ({_write_bounds(change)})"


def find_change(pairs: Sequence[tuple[float, float]]) -> MeanChange:
    """Mean change over rounds from the second to the first; at least two pairs."""
    from scipy.special import stdtrit  # slow to import

    relative = all(own > 0 and base > 0 for own, base in pairs)
    changes = [math.log(own / base) if relative else own - base for own, base in pairs]
    mean, error = statistics.fmean(changes), statistics.stdev(changes) / math.sqrt(len(changes))
    reach = float(stdtrit(len(changes) - 1, (1 + CONFIDENCE) / 2)) * error
    typical, low, high = (math.expm1(one) if relative else one for one in (mean, mean - reach, mean + reach))
    return MeanChange(typical, low, high, relative)


def _write_bounds(change: MeanChange) -> str:
    low, high = (_write_change(one, change.relative) for one in (change.low, change.high))
    return low if low == high else f"{low} to {high}"


def _write_change(change: float, relative: bool) -> str:
    direction = "higher" if change > 0 else "lower"
    if change == 0:
        return "equal"
    if not relative:
        return f"{abs(change):.3g} {direction}"
    if change >= 1:
        return f"{change + 1:.2g} times as high"
    percent = abs(change) * 100
    return f"{percent:.0f} % {direction}" if percent >= 10 else f"{percent:.2g} % {direction}"
