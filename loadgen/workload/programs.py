"""Agents' runs by published figures."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import log, sqrt

import numpy as np

from loadgen.client.request import PROGRAMS, LoadPrompt
from loadgen.workload.lengths import RequestLengths

# published traces of coding agents (vllm#57103, router#285): medians, and shares of pauses
TURNS, PROMPT, ANSWER, NEW = 43.0, 142_000, 444, 0.04  # NEW: share of a prompt that no earlier one had
SOON, LATE = (1.0, 1.080), (10.0, 1.645)  # seconds, standard deviations: 86 % and 95 %
FIRST = 13_000  # tokens of a first prompt, the mean of Codex's and Claude Code's
LONGEST_PAUSE = 60.0  # seconds; a tool's usual time limit
MOST_TURNS = 400
MEAN_TURNS = 182.0  # 85,750 in 472 sessions (InferenceX#1632), subagents' apart
SPREAD = 0.35  # standard deviation of the logarithm of a turn's tokens: assumed


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


WORDS = ("all", "and", "but", "can", "day", "for", "get", "had", "her", "how", "new", "not", "now", "old", "one", "two")


def write_prompts(turns: Iterable[RequestLengths], longest: int | None, seed: int) -> Iterator[LoadPrompt]:
    """A chat for each run, ended before a prompt of more than `longest` tokens; a word is a token."""
    for number, (_, group) in enumerate(groupby(turns, key=lambda one: one.run)):
        run = [one for one in group if longest is None or one.input_length <= longest]
        rng, before, texts = np.random.default_rng((seed, number)), 0, list[str]()
        for one in run:
            texts.append(" ".join(rng.choice(WORDS, max(1, one.input_length - before))))
            before = one.input_length + one.output_length
        if run:
            yield LoadPrompt(
                messages=({"role": "user", "content": texts[0]},),
                follow_ups=tuple(texts[1:]),
                replay_tokens=run[0].output_length,
                answers=tuple(one.output_length for one in run[1:]),
                pauses=tuple(one.pause for one in run[1:]),
                label=PROGRAMS,
            )
