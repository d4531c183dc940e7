"""How promised ends come true: `python -P -m loadgen.experiments.validation.promises [REQUESTS]`.

Judged without the first tenth. An oracle knows each wait and speed, and of the own length what is predicted.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import NamedTuple, Self

import numpy as np

from engine.sampling.params import SamplingParams
from loadgen.bench.measures import find_percentile
from loadgen.console import Table, show_table, table_console
from loadgen.experiments.grid.cells import MACHINES, Cell, draw_clients, load_lengths
from loadgen.experiments.grid.run import measure_capacity
from loadgen.experiments.options import read_requests
from loadgen.simulate.load import draw_arrivals
from loadgen.simulate.node import Node, VirtualClock
from loadgen.simulate.prediction import Forecast, read_prediction
from loadgen.simulate.run import GROUP_TOKENS
from loadgen.simulate.simulation import fit_parts, prices_of
from loadgen.turns import collect
from loadgen.workload.lengths import RequestLengths
from models.progress import Bars
from scheduler.batching.batcher import BatchLimits
from scheduler.length.likely import likely_quantiles
from scheduler.options import Scheduling
from scheduler.request import COVERAGE, Request, Unpromised
from scheduler.strategy import STRATEGIES, Strategy
from scheduler.waiting.out_of_turn import OutOfTurn

FEWEST = 100  # requests of a key that is judged
ASKED = 3  # every third call asks for a promise
WITHIN = 2.0  # times from the start to the end that it may take
LEARNED, JUDGED = 300, 500  # answers after a change, and calls that come then


@dataclass(frozen=True, slots=True)
class Scenario:
    cell: Cell
    change: str = ""  # in the middle: `slower` or `faster` steps by two, or answers twice as `long` as predicted


class Told(NamedTuple):
    """Seconds from its arrival, at `came`."""

    request: Request
    queue: int  # requests before it
    key: int
    came: float
    seconds: float
    high: float  # promised
    oracle: float  # what an oracle would promise

    @property
    def is_kept(self) -> bool:
        return self.seconds <= self.high

    @property
    def own(self) -> float:
        assert self.request.times.started is not None
        return self.came + self.seconds - self.request.times.started

    @classmethod
    def of(cls, request: Request, queue: int, key: int) -> Self:
        times, expected, known, made = request.times, request.expected, request.distribution, request.generated
        assert times.end is not None and times.started is not None and expected is not None
        longest = made if known is None else likely_quantiles(request, COVERAGE)[0]
        oracle = times.started - times.came + (times.end - times.started) * longest / made
        return cls(request, queue, key, times.came, times.end - times.came, expected.high, oracle)


def play(scenario: Scenario, strategy: Strategy, alone: Sequence[Told] = ()) -> list[Told]:
    """In order of arrival; with what they took `alone`, one in ASKED asks for a promise, else goes on without."""
    cell, machine = scenario.cell, MACHINES[scenario.cell.machine]
    rate = cell.rho * measure_capacity(cell.machine, cell.load, cell.seed)
    load = draw_arrivals(load_lengths(cell.load, cell.requests, cell.seed), rate, cell.burstiness, cell.seed + 1)
    middle = load[len(load) // 2].arrival
    factor = {"slower": 2.0, "faster": 0.5}.get(scenario.change, 1.0)
    machine = replace(machine, pace=lambda now, seconds: seconds * (factor if now >= middle else 1.0))
    limits = BatchLimits.of(Scheduling(), GROUP_TOKENS, machine.max_num_seqs)
    clock = VirtualClock()
    node = Node(fit_parts(strategy, limits, machine, prices_of(machine)), machine, clock)
    keys, queues, requests = draw_clients(np.random.default_rng(cell.seed), len(load)), list[int](), list[Request]()
    for place, (one, sampling, forecast) in enumerate(_forecast(scenario, load)):
        _run(node, clock, one.arrival)
        queues.append(node.requests)
        send = partial(node.submit, (0,) * one.input_length, sampling, forecast)
        try:
            asks = alone and place % ASKED == 0
            requests.append(send(promised=one.arrival + WITHIN * alone[place].own if asks else None))
        except Unpromised:
            requests.append(send())
    _run(node, clock, math.inf)
    return list(map(Told.of, requests, queues, keys.tolist()))


def _forecast(
    scenario: Scenario, load: Sequence[RequestLengths]
) -> Iterator[tuple[RequestLengths, SamplingParams, Forecast]]:
    predict, most = read_prediction(scenario.cell.prediction).source(scenario.cell.seed), 2048
    for place, one in enumerate(load):
        sampling = SamplingParams(most, replay_tokens=one.output_length)
        forecast = None if predict is None else predict(sampling)
        if scenario.change == "long" and place >= len(load) // 2:
            sampling = SamplingParams(most, replay_tokens=min(most - one.input_length, 2 * one.output_length))
        yield one, sampling, forecast


def _run(node: Node, clock: VirtualClock, until: float) -> None:
    while node.due <= until and node.due < math.inf:
        clock.move_to(node.due)
        node.advance()
    if until < math.inf:
        clock.move_to(until)


BEFORE = 0.3  # the default's share without promises


def without_promises(strategy: Strategy) -> Strategy:
    """The default's order as it was."""
    return replace(strategy, order=lambda limits, _: OutOfTurn(BEFORE, limits.usual_rows, keeps=False))


def _share(told: Sequence[Told]) -> float:
    return fmean(one.is_kept for one in told)


def _worst_fifth(told: Sequence[Told], by: Callable[[Told], float]) -> float:
    ordered, size = sorted(told, key=by), len(told) // 5
    return min(_share(ordered[size * fifth : size * (fifth + 1)]) for fifth in range(5))


def _choose_later(told: Sequence[Told]) -> Sequence[Told]:
    """The first JUDGED that came after LEARNED answers of the second half."""
    middle = told[len(told) // 2].request.times.came
    ends = sorted(end for one in told if (end := one.came + one.seconds) >= middle)
    learned = ends[min(LEARNED, len(ends) - 1)]
    return [one for one in told if one.came >= learned][:JUDGED] or told[-1:]


def judge(told: Sequence[Told], base: Sequence[Told]) -> tuple[float, ...]:
    """Kept overall, at worst by estimate, load, time and key, and after a change; promised and an oracle's to true
    seconds; changes of mean and p99 to `base`.
    """
    known = [one for one in told[len(told) // 10 :] if one.request.expected and one.request.expected.known]
    keys = [[one for one in known if one.key == key] for key in {one.key for one in known}]
    mean, mean_before = (fmean(one.seconds for one in each) for each in (told, base))
    tail, tail_before = (find_percentile(sorted(one.seconds for one in each), 99) for each in (told, base))
    return (
        _share(known),
        _worst_fifth(known, lambda one: one.high),
        _worst_fifth(known, lambda one: one.queue),
        _worst_fifth(known, lambda one: one.came),
        min((_share(one) for one in keys if len(one) >= FEWEST), default=math.nan),
        _share(_choose_later(told)),
        median(one.high / one.seconds for one in known),
        median(one.oracle / one.seconds for one in known),
        100 * (mean / mean_before - 1),
        100 * (tail / tail_before - 1),
    )


def judge_asked(told: Sequence[Told], base: Sequence[Told]) -> tuple[float, ...]:
    """Shares of promises asked for that were refused, that an oracle would refuse without them, and of those given that
    broke.
    """
    first = -(-len(told) // 10 // ASKED) * ASKED
    asked, before = told[first::ASKED], base[first::ASKED]
    given = [one for one in asked if one.request.promised is not None]
    kept = fmean(bool(one.request.keeps_promise(one.came + one.seconds)) for one in given) if given else math.nan
    return 1 - len(given) / len(asked), fmean(one.oracle > WITHIN * one.own for one in before), 1 - kept


KEPT = ("kept", "estimate", "queue", "time", "key", "later")
HEADS = ("", *KEPT, "promised / true", "oracle's", "mean JCT, %", "p99, %")
ASKED_HEADS = ("refused", "oracle refuses", "broken")


def list_scenarios(requests: int) -> Iterator[Scenario]:
    usual = Cell("A100, scarce slots", "log-normal", 1.2, prediction="noisy:0.5", requests=requests)
    yield from (Scenario(replace(usual, rho=rho)) for rho in (0.7, 0.95, 1.1, 1.4))
    yield from (Scenario(replace(usual, rho=rho, burstiness=0.1)) for rho in (0.8, 0.95))
    for machine, load in (("small CPU", "log-normal"), ("H100", "servegen"), ("A100, scarce memory", "mooncake")):
        yield from (Scenario(replace(usual, machine=machine, load=load, rho=rho)) for rho in (0.95, 1.2))
    yield Scenario(replace(usual, load="servegen", rho=0.9, burstiness=0.1))
    yield from (Scenario(replace(usual, prediction=prediction)) for prediction in ("oracle", "inverted", "none"))
    yield Scenario(replace(usual, rho=2.0, prediction="none"))
    yield from (Scenario(replace(usual, rho=0.85), change) for change in ("slower", "long"))
    yield Scenario(replace(usual, rho=1.3), "faster")


def describe(scenario: Scenario) -> str:
    cell = scenario.cell
    bursts = ", bursts" if cell.burstiness < 1 else ""
    change = f", then {scenario.change}" if scenario.change else ""
    return f"{cell.machine}, {cell.load}, {cell.prediction}, {cell.rho:g}{bursts}{change}"


def tabulate(scenarios: Sequence[Scenario]) -> Table:
    """Of those that had ended before Ctrl-C."""
    with Bars() as bars:
        bars.begin("scenarios", len(scenarios))
        rows, _ = collect(map(_judge_all, scenarios), lambda _: bars.advance())
    return Table("how promised ends come true", HEADS + ASKED_HEADS, tuple(rows))


def _judge_all(scenario: Scenario) -> tuple[str, ...]:
    strategy = STRATEGIES["lengthwise"]
    base = play(scenario, without_promises(strategy))
    figures = (*judge(play(scenario, strategy), base), *judge_asked(play(scenario, strategy, base), base))
    return (describe(scenario), *(f"{one:.2f}" for one in figures))


READING = (
    "A row a scenario: machine, lengths, predictions, load by what is served; docs/research/prediction.md groups them. "
    "Shares of promises kept: of all; of the worst fifth by estimate, queue and time; of the worst key; later: after a "
    "change in the middle. Promised and an oracle's time by the true one, medians. JCT beside the order without "
    "promises. Of promises asked for: shares refused, refused by an oracle, and broken of those given."
)


if __name__ == "__main__":
    table_console().print(show_table(tabulate([*list_scenarios(read_requests(5000))])), READING)
