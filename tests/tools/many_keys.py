"""How well many keys are predicted that call in turn, and what that takes: `python -m tests.tools.many_keys
1 36 200 1000`. Each key has kinds of prompts of its own, whose answers have lengths of its own."""

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil

from scheduler.learner import inline
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.learning import LengthHistory, ServedRow
from scheduler.length.likely import within_twice
from scheduler.length.microbatch import MicroBatcher
from scheduler.length.online import Answers, CalibratedForest, OnlineForest, fit
from scheduler.length.prediction import Prediction, prediction_of
from tests.scheduler.fakes import VirtualClock

WORDS = 2000
KINDS = 6
PACE = 20 / 3600
"""Calls a second of a key."""

FEATURES = TokenFeatures.hashed(WORDS)


@dataclass(frozen=True, slots=True)
class Found:
    """What became of the answers of the second half of the calls."""

    keys: int
    within_twice: float
    by_answers: float  # share whose prediction is a distribution, from the key's own answers
    seconds: float  # of a core for 1,000 calls, forests included
    megabytes: float


def calls(keys: int, each: int, seed: int = 0) -> Iterator[tuple[LengthQuery, int]]:
    """Prompts of keys in turn, and the lengths of their answers: a kind's words among others, and its length, with a
    log-normal spread of 0.25."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(5), np.log(800), (keys, KINDS)))
    named = rng.integers(0, WORDS, (keys, KINDS, 3))
    for _ in range(each):
        for key in range(keys):
            kind = int(rng.integers(KINDS))
            tokens = (*named[key, kind].tolist(), *rng.integers(0, WORDS, rng.integers(5, 40)).tolist())
            length = max(1, round(lengths[key, kind] * np.exp(0.25 * rng.normal())))
            yield LengthQuery("", "", len(tokens), 4096, tokens, f"{key:016x}"), length


async def play(keys: int, each: int) -> Found:
    """Serve calls of keys in turn."""
    clock, judged, own, process = VirtualClock(), list[bool](), 0, psutil.Process()

    def fit_in_time(answers: Answers) -> CalibratedForest:
        begun = time.process_time()
        forest = fit(answers)
        clock.time += time.process_time() - begun
        return forest

    forest, history = OnlineForest(FEATURES, inline, clock, fit=fit_in_time), LengthHistory()
    front = MicroBatcher(forest, history)
    memory, begun = process.memory_info().rss, time.process_time()
    for place, (query, length) in enumerate(calls(keys, each)):
        clock.time += 1 / (PACE * keys)
        (estimate,) = await forest.estimate([query])
        prediction: Prediction = prediction_of(query, estimate) or front._conclude(query, estimate, None)
        if place >= keys * each / 2:
            judged.append(within_twice(prediction.length, length))
            own += estimate.distribution is not None
        history.add(query.scope, query.instruction, length)
        forest.add(ServedRow(estimate.features, prediction.length, length, scope=query.scope))
    seconds = time.process_time() - begun
    megabytes = (process.memory_info().rss - memory) / 1e6
    return Found(keys, sum(judged) / len(judged), own / len(judged), 1000 * seconds / (keys * each), megabytes)


if __name__ == "__main__":
    for count in map(int, sys.argv[1:]):
        print(asyncio.run(play(count, 60)), flush=True)
