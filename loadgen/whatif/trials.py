"""A replay under every strategy and under other settings, at the speed that the machine had when it served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadgen.simulate.latencies import Latencies, measure_latencies
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Prediction, replay_forecasts
from loadgen.simulate.simulation import Served, simulate
from loadgen.simulate.speed_curve import SpeedCurve
from loadgen.whatif.replay import Replay
from loadgen.whatif.speed import find_speed
from models.errors import UserError
from scheduler.assembly import assemble, find_strategies
from scheduler.batching.batcher import Limits
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES, Length

OTHER_SIZES: Mapping[str, Callable[[Machine], Machine]] = MappingProxyType(
    {
        "half the slots": lambda one: replace(one, max_num_seqs=max(1, one.max_num_seqs // 2)),
        "twice the slots": lambda one: replace(one, max_num_seqs=2 * one.max_num_seqs),
        "half the memory": lambda one: replace(one, capacity_tokens=max(one.context_length, one.capacity_tokens // 2)),
        "one more executor": lambda one: replace(one, workers=one.workers + 1),
    }
)
"""Machines to try; an executor that is added has a device of its own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a server, and the learned prices of its machine."""

    options: Scheduling
    machine: Machine
    prices: Bilinear
    group_tokens: int
    prediction: Prediction
    """The kind of prediction for strategies that want lengths, where the journal has none."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One replay."""

    strategy: str
    sizes: str
    """How its machine differs from the one that served; empty: not at all."""
    latencies: Latencies


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A journal's requests as they were served, and as other strategies would have served them."""

    replay: Replay
    slowdown: float
    """Seconds for which requests were served, over the work done meanwhile by the learned prices."""
    recorded: Latencies
    own: Trial
    """The strategy that served, simulated."""
    others: tuple[Trial, ...]
    held_out: tuple[float, float]
    """Deviations as `errors` has them, of the second half of the requests at a speed that the first half alone told."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All replays, the own strategy's first."""
        return (self.own, *self.others)

    @property
    def errors(self) -> tuple[float, float]:
        """Deviations of the own strategy's replay from the recorded."""
        return deviate(self.own.latencies, self.recorded)


def deviate(simulated: Latencies, recorded: Latencies) -> tuple[float, float]:
    """Deviation of the simulated from the recorded, as shares of the recorded: of the mean JCT, and of its p99."""
    ours, theirs = simulated.jct, recorded.jct
    return ours.mean / theirs.mean - 1, ours.percentiles[99.0] / theirs.percentiles[99.0] - 1


def try_all(replay: Replay, setting: Setting, names: Sequence[str], done: Callable[[], None]) -> WhatIf:
    """Replay under each strategy, calling `done` after it; and the best of them and the own one on other machines."""
    curve, slowdown = find_speed(replay.recorded, lambda one: play(replay, _paced(setting, one), replay.strategy))
    setting = _paced(setting, curve)
    trials = []
    for name in dict.fromkeys((replay.strategy, *names)):
        trials.append(Trial(name, "", measure_latencies(play(replay, setting, name))))
        done()
    best = min(trials, key=lambda one: one.latencies.jct.mean).strategy
    for name in dict.fromkeys((replay.strategy, best)):
        for sizes, machine in _other_machines(setting.machine):
            served = play(replay, replace(setting, machine=machine), name)
            trials.append(Trial(name, sizes, measure_latencies(served)))
    recorded, held_out = measure_latencies(replay.recorded), _hold_out(replay, setting)
    return WhatIf(replay, slowdown, recorded, trials[0], tuple(trials[1:]), held_out)


def _hold_out(replay: Replay, setting: Setting) -> tuple[float, float]:
    """Deviations of the second half of the requests, replayed at the mean speed that the first half tells."""
    half = len(replay.trace) // 2

    def play_at(curve: SpeedCurve) -> tuple[Served, ...]:
        return play(replay, _paced(setting, curve), replay.strategy)

    known, _ = find_speed(replay.recorded[:half], lambda curve: play_at(curve)[:half])
    return deviate(measure_latencies(play_at(known)[half:]), measure_latencies(replay.recorded[half:]))


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


def _paced(setting: Setting, curve: SpeedCurve) -> Setting:
    return replace(setting, machine=replace(setting.machine, pace=curve.pace))


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
