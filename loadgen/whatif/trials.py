"""The latest requests of a journal, replayed under every strategy and under other settings, at the mean speed that the
machine had when it served. No text is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from engine.simulated.machine import Machine
from loadgen.simulate.figures import Figures, measure_latencies
from loadgen.simulate.prediction import Prediction, replay_forecasts
from loadgen.simulate.simulation import Served, simulate
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from scheduler.assembly import assemble, find_strategies
from scheduler.batching.batcher import Limits
from scheduler.journal.file import RequestEntry, read
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES, Length

FEWEST = 20
"""Requests below which a replay says nothing."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests that one strategy served one after another, in order of arrival."""

    model: str
    strategy: str
    trace: tuple[Lengths, ...]
    predictions: tuple[float | None, ...]
    """Predicted tokens of each answer, as recorded; None where nothing was predicted."""
    recorded: tuple[Served, ...]
    max_tokens: int
    """Tokens that the most demanding of them asked for."""
    left_out: int
    """Requests that ended without a token."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return max(one.input_length + one.output_length for one in self.trace)

    @property
    def predicted(self) -> bool:
        """Whether the server predicted lengths."""
        return any(one is not None for one in self.predictions)


def read_replay(journal: Path, model: str | None, most: int) -> Replay:
    """The newest requests of a journal, `most` at most, as far back as one strategy served one model.

    `model` as the journal names it; None for the one served last. Raises UserError.
    """
    newest = list(read(journal, RequestEntry, last=most, model=model))[::-1]
    same = takewhile(lambda one: (one.model, one.strategy) == (newest[0].model, newest[0].strategy), newest)
    asked = sorted(same, key=_arrival)
    entries = [one for one in asked if one.generated and one.started is not None]
    if len(entries) < FEWEST:
        whose = "" if model is None else f" to {model}"
        raise UserError(
            f"{journal}: holds {len(entries)} answered requests{whose} of the latest strategy, and {FEWEST} are "
            "wanted: serve some more first, or name another journal with --journal"
        )
    return _replay(entries, len(asked) - len(entries))


def _replay(entries: Sequence[RequestEntry], left_out: int) -> Replay:
    origin = _arrival(entries[0])
    return Replay(
        model=entries[0].model,
        strategy=entries[0].strategy,
        trace=tuple(Lengths(_arrival(one) - origin, one.input_length, one.generated) for one in entries),
        predictions=tuple(one.predicted for one in entries),
        recorded=tuple(_served(one, _arrival(one) - origin) for one in entries),
        max_tokens=max(one.max_tokens for one in entries),
        left_out=left_out,
    )


def _served(entry: RequestEntry, arrival: float) -> Served:
    end = arrival + entry.latency
    return Served(
        arrival=arrival,
        started=arrival + (entry.started or 0.0),
        first_token=end if entry.first_token is None else arrival + entry.first_token,
        end=end,
        input_length=entry.input_length,
        output_length=entry.generated,
        runs=entry.runs,
        predicted_length=entry.predicted,
    )


def _arrival(entry: RequestEntry) -> float:
    """When a request came, in seconds since 1970."""
    return entry.finished_at - entry.latency


OTHER_SIZES: Mapping[str, Callable[[Machine], Machine]] = MappingProxyType(
    {
        "half the slots": lambda one: replace(one, max_num_seqs=max(1, one.max_num_seqs // 2)),
        "twice the slots": lambda one: replace(one, max_num_seqs=2 * one.max_num_seqs),
        "half the memory": lambda one: replace(one, capacity_tokens=max(one.context_length, one.capacity_tokens // 2)),
        "one more executor": lambda one: replace(one, workers=one.workers + 1),
    }
)
"""Machines to try; an executor that is added has a device of its own."""

ROUNDS = 8  # simulations that look for the machine's speed, at most
CLOSE = 0.002  # the share of the served seconds by which a simulation at the speed found may miss them
OFF = 0.5  # the error from which on the simulator has nothing to say


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a server, and the learned prices of its machine."""

    options: Scheduling
    machine: Machine
    prices: Bilinear
    group_tokens: int
    prediction: Prediction  # for strategies that want lengths, where the journal has none
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One replay."""

    strategy: str
    sizes: str  # how its machine differs from the one that served; empty: not at all
    figures: Figures


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A journal's requests as they were served, and as other strategies would have served them."""

    replay: Replay
    slowdown: float  # seconds for which requests were served, over what the learned prices say
    recorded: Figures
    own: Trial  # the strategy that served, simulated
    others: tuple[Trial, ...]
    interrupted: bool = False  # whether some trials are missing

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All replays, the own strategy's first."""
        return (self.own, *self.others)

    @property
    def errors(self) -> tuple[float, float]:
        """Deviation of the own strategy's replay from the recorded, as shares of that: of the mean JCT and its p99."""
        mean, p99 = (self.own.figures[key] / self.recorded[key] - 1 for key in ("mean_jct_ms", "p99_jct_ms"))
        return mean, p99

    @property
    def trusted(self) -> bool:
        """Whether the simulator is near enough to the record to say anything."""
        return max(map(abs, self.errors)) < OFF


def try_all(
    replay: Replay, setting: Setting, names: Sequence[str], begin: Callable[[int, float], Callable[[], None]]
) -> WhatIf:
    """Replay under each strategy, and the best of them and the own one on other machines.

    `begin` gets the number of trials and the seconds of one, and returns what to call after each. Where the own
    strategy's replay is far from the record no other is tried. KeyboardInterrupt ends the trials, and those that have
    ended are kept.
    """
    slowdown = find_slowdown(replay, setting)
    setting, begun = _slow(setting, slowdown), time.perf_counter()
    served = play(replay, setting, replay.strategy)
    each = time.perf_counter() - begun
    recorded = measure_latencies(replay.recorded, setting.machine.cost)
    own = Trial(replay.strategy, "", measure_latencies(served, setting.machine.cost))
    found = WhatIf(replay, slowdown, recorded, own, ())
    if not found.trusted:
        return found
    names = [name for name in dict.fromkeys(names) if name != replay.strategy]
    done = begin(len(names) + 2 * len(OTHER_SIZES), each)
    try:
        for name in names:
            found = _add(found, setting, name, "", setting.machine)
            done()
        best = min(found.trials, key=lambda one: one.figures["mean_jct_ms"]).strategy
        for name in dict.fromkeys((replay.strategy, best)):
            for sizes, machine in _other_machines(setting.machine):
                found = _add(found, setting, name, sizes, machine)
                done()
    except KeyboardInterrupt:
        return replace(found, interrupted=True)
    return found


def _add(found: WhatIf, setting: Setting, name: str, sizes: str, machine: Machine) -> WhatIf:
    """One more trial; one on another machine is left out where it comes out as on this one."""
    served = play(found.replay, replace(setting, machine=machine), name)
    trial = Trial(name, sizes, measure_latencies(served, machine.cost))
    same = sizes and any((one.strategy, one.sizes, one.figures) == (name, "", trial.figures) for one in found.trials)
    return found if same else replace(found, others=(*found.others, trial))


def find_slowdown(replay: Replay, setting: Setting) -> float:
    """The factor on the learned prices with which requests are served for as long as recorded."""
    slowdown, target = 1.0, sum(one.end - one.started for one in replay.recorded)
    for _ in range(ROUNDS):
        served = play(replay, _slow(setting, slowdown), replay.strategy)
        ratio = target / sum(one.end - one.started for one in served)
        if abs(ratio - 1) < CLOSE:
            break
        slowdown *= ratio
    return slowdown


def choose_strategies(asked: Sequence[str] | None) -> tuple[str, ...]:
    """The strategies that are asked for, else all that a server of the same weights could run; raises UserError."""
    able = find_strategies(asked or STRATEGIES)
    unfit = [name for name, one in able.items() if one.quantization is not None or one.length == Length.ORACLE]
    if asked and unfit:
        raise UserError(f"--strategies: {', '.join(unfit)}: wants other weights, or lengths that no server knows")
    return tuple(name for name in able if name not in unfit)


def _other_machines(machine: Machine) -> Iterator[tuple[str, Machine]]:
    for sizes, change in OTHER_SIZES.items():
        if (changed := change(machine)) != machine:
            yield sizes, changed


def _slow(setting: Setting, factor: float) -> Setting:
    return replace(setting, machine=replace(setting.machine, cost=setting.prices.slowed(factor)))


def play(replay: Replay, setting: Setting, name: str) -> tuple[Served, ...]:
    """The requests as a strategy would serve them; the scheduler knows the prices as they were learned."""
    machine, strategy = setting.machine, STRATEGIES[name]
    limits = Limits.of(setting.options, setting.group_tokens, machine.max_num_seqs)
    limits = limits.within(machine.capacity_tokens, machine.context_length, machine.max_num_seqs)
    predict = None
    if strategy.length != Length.NONE:
        predict = replay_forecasts(replay.predictions) if replay.predicted else setting.prediction.source(setting.seed)
    parts = assemble(strategy, limits, setting.prices)
    most = min(replay.max_tokens, machine.context_length)
    return simulate(parts, machine, replay.trace, most, predict=predict).requests
