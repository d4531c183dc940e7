"""Runs of agents, drawn or a trace's turns, and their figures. A turn comes a pause after the answer before."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np

from loadgen.bench.measures import divide, spread
from loadgen.workload.lengths import RequestLengths
from scheduler.programs.recognizer import Recognizer, Signs

# published traces of coding agents (vllm#57103, router#285): medians, and shares of pauses
TURNS, PROMPT, ANSWER, NEW = 43.0, 142_000, 444, 0.04  # NEW: share of a prompt that no earlier one had
SOON, LATE = (1.0, 1.080), (10.0, 1.645)  # seconds, standard deviations: 86 % and 95 %
FIRST = 13_000  # tokens of a first prompt, the mean of Codex's and Claude Code's
LONGEST_PAUSE = 60.0  # seconds; a tool's usual time limit
MOST_TURNS = 400
MEAN_TURNS = 182.0  # 85,750 in 472 sessions (InferenceX#1632), subagents' apart
SPREAD = 0.35  # standard deviation of the logarithm of a turn's tokens: assumed
PERCENTILES = (50.0, 99.0)


def draw_runs(count: int, duration: float, scale: float, seed: int) -> list[RequestLengths]:
    """Arriving over `duration` seconds, with `scale` times the tokens."""
    rng = np.random.default_rng((seed, count))
    sigma = log(LATE[0] / SOON[0]) / (LATE[1] - SOON[1])
    found: list[RequestLengths] = []
    for run, arrival in enumerate(sorted(rng.uniform(0.0, duration, count))):
        turns = int(min(MOST_TURNS, max(1, rng.lognormal(log(TURNS), sqrt(2 * log(MEAN_TURNS / TURNS))))))
        pauses = np.minimum(LONGEST_PAUSE, rng.lognormal(log(SOON[0]) - sigma * SOON[1], sigma, turns))
        told = np.ceil(scale * NEW * PROMPT * rng.lognormal(0.0, SPREAD, turns))
        answers = np.ceil(scale * ANSWER * rng.lognormal(0.0, SPREAD, turns))
        read = scale * FIRST + np.cumsum(told) + np.cumsum(answers) - answers
        found += [
            RequestLengths(float(arrival), int(prompt), int(answer), run=f"run {run}", pause=float(pause))
            for prompt, answer, pause in zip(read, answers, pauses, strict=True)
        ]
    return found


def chain_turns(requests: Sequence[RequestLengths]) -> list[RequestLengths]:
    """A trace's in order of arrival, by the turn before that it names, else by its blocks."""
    recognizer, chats, last = Recognizer(len(requests)), dict[str, str](), dict[str, float]()
    found = []
    for place, one in enumerate(requests):
        chain = [repr(one.blocks[:end]).encode() for end in range(1, len(one.blocks))]  # the last is no whole block
        run = chats.get(one.parent) or (recognizer.recognize("", Signs(chain=chain), 0.0).name if chain else str(place))
        chats[one.chat] = run if one.chat else ""
        found.append(replace(one, run=run, pause=one.arrival - last.get(run, one.arrival)))
        last[run] = one.arrival
    return found


def list_following(trace: Sequence[RequestLengths], turns: int) -> Mapping[int, int]:
    """The place of each one's next turn."""
    if turns > 1:
        return {place: place + 1 for place in range(len(trace) - 1) if (place + 1) % turns}
    return dict(_follow_runs(trace))


def _follow_runs(trace: Sequence[RequestLengths]) -> Iterator[tuple[int, int]]:
    last: dict[str, int] = {}
    for place, one in enumerate(trace):
        if one.run in last:
            yield last[one.run], place
        if one.run:
            last[one.run] = place


def measure_runs(done: Sequence[Any]) -> dict[str, Any]:
    """Of completed turns, in order of arrival; empty without any."""
    runs: dict[str, list[Any]] = {}
    for one in done:
        if one.run:
            runs.setdefault(one.run, []).append(one)
    if not runs:
        return {}
    turns = [one for run in runs.values() for one in run]
    times = [run[-1].end - run[0].arrival for run in runs.values()]
    later = [one for run in runs.values() for one in run[1:]]
    others = [1000 * (one.end - one.arrival) for one in done if not one.run]
    return {
        "runs": len(runs),
        **spread("run_ms", times, PERCENTILES),
        **spread("turn_ttft_ms", [one.first_token - one.arrival for one in turns], PERCENTILES),
        "prefix_hits": divide(sum(one.cached_prompt for one in later), sum(one.input_length for one in later)),
        "mean_other_jct_ms": float(np.mean(others)) if others else None,
    }
