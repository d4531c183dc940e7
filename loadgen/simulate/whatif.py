"""A journal's latest requests replayed under other strategies and settings, at the machine's speed then."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Self, TypeAlias

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from engine.measure.timing import Timing
from engine.simulated.machine import Machine
from loadgen.console import TABLES, show_table, tabulate
from loadgen.result_file import Json
from loadgen.simulate.figures import Figures, measure_latencies
from loadgen.simulate.prediction import SimulatedPrediction, choose_prediction, replay_forecasts
from loadgen.simulate.replay import Replay
from loadgen.simulate.simulation import Served, fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from models.errors import UsageError
from scheduler.assembly import find_strategies
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import LEAST_SECONDS, Bilinear, fit_surfaces
from scheduler.strategy import STRATEGIES, Length

GUESSED = SimulatedPrediction(0.5)  # where the journal has no predictions


def fit_prices(recorded: Sequence[Served]) -> tuple[Bilinear, int]:
    """By how long each took beside how many; and the most at a time."""
    start, first, end = np.array([(one.started, one.first_token, one.end) for one in recorded]).T
    beside = np.minimum.outer(end, end) - np.maximum.outer(first, start)
    rows = np.maximum(1, beside.clip(0).sum(axis=1) / np.maximum(end - first, LEAST_SECONDS)).round().astype(int)
    steps = [
        Timing(many, one.input_length + one.output_length // 2, (one.end - one.first_token) / (one.output_length - 1))
        for one, many in zip(recorded, rows.tolist(), strict=True)
        if one.output_length > 1
    ]
    read = [Timing(1, one.input_length, one.first_token - one.started) for one in recorded]
    most = max(int(((start <= at) & (at < end)).sum()) for at in start)
    return fit_surfaces(read, steps), most


OTHER_SIZES: Mapping[str, Callable[[Machine], Machine]] = {
    "half the slots": lambda one: replace(one, max_num_seqs=max(1, one.max_num_seqs // 2)),
    "twice the slots": lambda one: replace(one, max_num_seqs=2 * one.max_num_seqs),
    "half the memory": lambda one: replace(one, capacity_tokens=max(one.context_length, one.capacity_tokens // 2)),
    "one more executor": lambda one: replace(one, workers=one.workers + 1),
}  # an added executor has its own device

ROUNDS = 8  # of the search for the machine's speed
CLOSE = 0.002  # relative error of served seconds at the speed found
OFF, DOUBTFUL = 0.5, 0.2  # errors from which on the simulator is useless, and to be doubted


@dataclass(frozen=True, slots=True)
class WhatIfSetting:
    """A server's settings and its machine's prices."""

    options: Scheduling
    machine: Machine
    prices: Bilinear
    group_tokens: int

    def slowed(self, factor: float) -> Self:
        return replace(self, machine=replace(self.machine, cost=self.prices.slowed(factor)))


Trial: TypeAlias = tuple[str, str]  # strategy, and how its machine differs; empty: not


@dataclass(frozen=True, slots=True)
class WhatIf:
    replay: Replay
    slowdown: float  # served seconds over priced ones
    recorded: Figures
    trials: Mapping[Trial, Figures]  # first: the strategy that served
    interrupted: bool = False  # trials are missing

    @property
    def own(self) -> Figures:
        return self.trials[self.replay.strategy, ""]

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of the own replay's mean JCT and p99."""
        mean, p99 = (self.own[key] / self.recorded[key] - 1 for key in ("mean_jct_ms", "p99_jct_ms"))
        return mean, p99

    @property
    def error(self) -> float:
        return max(map(abs, self.errors))

    @property
    def trusted(self) -> bool:
        return self.error < OFF

    @property
    def by_mean(self) -> list[Trial]:
        return sorted([*self.trials][1:], key=lambda one: self.trials[one]["mean_jct_ms"])


def try_all(replay: Replay, setting: WhatIfSetting, names: Sequence[str]) -> Iterator[WhatIf]:
    """Replay the own strategy and, if it fits the record, the others; then the best and own on other machines. Yields
    after each trial.
    """
    slowdown = find_slowdown(replay, setting)
    setting = setting.slowed(slowdown)
    recorded = measure_latencies(replay.recorded, setting.machine.cost)
    trials: dict[Trial, Figures] = {(replay.strategy, ""): _measure(replay, setting, replay.strategy)}
    yield (found := WhatIf(replay, slowdown, recorded, dict(trials)))
    if not found.trusted:
        return
    for name in names:
        if name != replay.strategy:
            trials[name, ""] = _measure(replay, setting, name)
        yield replace(found, trials=dict(trials))
    best, _ = min(trials, key=lambda one: trials[one]["mean_jct_ms"])
    for name, sizes in product(dict.fromkeys((replay.strategy, best)), OTHER_SIZES):
        other = replace(setting, machine=OTHER_SIZES[sizes](setting.machine))
        if (figures := _measure(replay, other, name)) != trials[name, ""]:
            trials[name, sizes] = figures
        yield replace(found, trials=dict(trials))


def _measure(replay: Replay, setting: WhatIfSetting, name: str) -> Figures:
    return measure_latencies(play(replay, setting, name), setting.machine.cost)


def find_slowdown(replay: Replay, setting: WhatIfSetting) -> float:
    """The factor on prices that reproduces the recorded seconds."""
    slowdown, target = 1.0, sum(one.end - one.started for one in replay.recorded)
    for _ in range(ROUNDS):
        served = play(replay, setting.slowed(slowdown), replay.strategy)
        ratio = target / sum(one.end - one.started for one in served)
        if abs(ratio - 1) < CLOSE:
            break
        slowdown *= ratio
    return slowdown


def choose_strategies(asked: Sequence[str] | None, *, sent: bool) -> tuple[str, ...]:
    """Those asked for, else all that a server of these weights, or a gateway, could run; raises UserError."""
    able = find_strategies(asked or STRATEGIES)
    unfit = [name for name, one in able.items() if one.quantization is not None or one.length == Length.ORACLE]
    if sent and not asked:
        unfit += [name for name, one in able.items() if not one.only_admits]
    if asked and unfit:
        raise UsageError(f"--strategies: {', '.join(unfit)}: wants other weights, or lengths that no server knows")
    return tuple(name for name in able if name not in unfit)


def play(replay: Replay, setting: WhatIfSetting, name: str) -> tuple[Served, ...]:
    machine, strategy = setting.machine, STRATEGIES[name]
    limits = BatchLimits.of(setting.options, setting.group_tokens, machine.max_num_seqs)
    known = [one.predicted_length for one in replay.recorded]
    predict = choose_prediction(strategy, replay_forecasts(known) if replay.predicted else GUESSED.source(seed=0))
    parts = fit_parts(strategy, limits, machine, setting.prices)
    trace = list(_chain_turns(replay.recorded))
    return simulate(parts, machine, trace, min(replay.max_tokens, machine.context_length), predict=predict).requests


def _chain_turns(recorded: Sequence[Served]) -> Iterator[RequestLengths]:
    """A run's calls follow each other's answers where they did; those at once come when they came."""
    ended: dict[str, float] = {}
    for one in recorded:
        pause = one.arrival - ended.get(one.run, one.arrival)
        run = one.run if pause >= 0 else ""
        yield RequestLengths(one.arrival, one.input_length, one.output_length, run=run, pause=pause if run else 0.0)
        ended[one.run] = max(one.end, ended.get(one.run, one.end))


WORST_P99 = 1.05  # of the own p99 that a better strategy may have


def find_better(found: WhatIf) -> Trial | None:
    """The least mean JCT within WORST_P99; None where the gain is within the simulator's error. Other executors do not
    count: they cost a device.
    """
    for one in found.by_mean:
        ratios = {key: found.trials[one][key] / found.own[key] for key in ("mean_jct_ms", "p99_jct_ms")}
        if not _adds_device(one) and ratios["p99_jct_ms"] <= WORST_P99:
            return one if 1 - ratios["mean_jct_ms"] > abs(found.errors[0]) else None
    return None


def write_sentences(found: WhatIf) -> Iterator[str]:
    replay, (mean_error, p99_error) = found.replay, found.errors
    taken = f"{len(replay.recorded)} requests to {replay.model}"
    others = f"; --of replays those to {replay.others}" * bool(replay.others)
    off = f"a mean completion time {mean_error:+.1%} and a p99 {p99_error:+.1%} from those recorded"
    if not found.trusted:
        yield (
            f"No strategy can be judged by these {taken}: simulated under {replay.strategy}, "
            f"which served them, they have {off}. Other programs may have taken the machine's cores for a time, "
            f"or settings differ from the server's{others}."
        )
        return
    if found.error >= DOUBTFUL:
        off_by = f"off by {found.error:.0%}, more than {DOUBTFUL:.0%}"
        yield f"Doubtful: the replay under {replay.strategy}, which served, is {off_by}."
    yield _write_verdict(found)
    own, recorded = (one.get("promises_kept") for one in (found.own, found.recorded))
    kept = "" if own is None or recorded is None else f", and {own:.0%} of promises kept where {recorded:.0%} were"
    yield (
        f"How far to trust this: simulated under {replay.strategy}, which served them, the requests have {off}{kept}. "
        f"A step takes {found.slowdown:.2f} times what was "
        f"{'fitted to these requests, as no profile is here' if replay.sent else 'learned on this machine'}, "
        "which makes the replay as fast as the server was."
    )
    left_out = f" ({replay.left_out} that got no token left out)" if replay.left_out else ""
    yield (
        f"{taken}{left_out}{others}. Predicted lengths are "
        + ("those recorded. " if replay.predicted else "made up, with errors: the journal has none. ")
        + "Prompts count as read in full: the journal has no texts that would say what was cached."
    )
    if found.interrupted:
        yield "Interrupted: strategies that are not in the table were not tried."


def _write_verdict(found: WhatIf) -> str:
    better, more = find_better(found), any(map(_adds_device, found.trials))
    apart = " One more executor, which wants a device more, is in the table only to compare." if more else ""
    if better is None:
        return f"Nothing tried here would surely have served these requests better than {found.replay.strategy}.{apart}"
    mean, p99 = (found.trials[better][key] / found.own[key] - 1 for key in ("mean_jct_ms", "p99_jct_ms"))
    named = " with ".join(filter(None, better))
    return f"{named} would have served them better: mean completion time {mean:+.0%}, p99 {p99:+.0%}.{apart}"


def _adds_device(trial: Trial) -> bool:
    return "executor" in trial[1]


def show(found: WhatIf) -> RenderableType:
    sentences = [Text(f"{line}\n") for line in write_sentences(found)]
    if not found.trusted:
        return Group(*sentences)
    rows = {", ".join(filter(None, one)): [found.trials[one]] for one in ((found.replay.strategy, ""), *found.by_mean)}
    table = tabulate("All trials; % is the difference to the first row, which served", [rows], TABLES["whatif"])
    return Group(*sentences, show_table(table))


def whatif_json(found: WhatIf) -> Json:
    return {
        "model": found.replay.model,
        "requests": len(found.replay.recorded),
        "slowdown": found.slowdown,
        "interrupted": found.interrupted,
        "recorded": found.recorded,
        "errors": {"mean_jct": found.errors[0], "p99_jct": found.errors[1]},
        "trials": [{"strategy": name, "sizes": sizes, **one} for (name, sizes), one in found.trials.items()],
    }
