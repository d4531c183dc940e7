"""The two query sets of Baton's evaluation (section 5.1), at any scale."""

from __future__ import annotations

import random
from typing import TypeAlias

from loadgen.experiments.baton.paper import LONG, SHORT, SHORTER
from loadgen.experiments.engine.job import Job, even_jobs

Range: TypeAlias = tuple[int, int]
"""Least and most tokens before scaling."""

SHORTEST_OUTPUT = 2
"""A row with a single token never takes a slot, so that nothing would be left to compare."""

MIX: tuple[tuple[Range, Range], ...] = ((LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (SHORT, SHORT))
"""Input and output of four queries: summaries, articles and two short questions, that is 1:1:2."""


def target_1(count: int, scale: float, vocab: int, seed: int) -> list[Job]:
    """The mix, shuffled. Lengths are uniform in their range, then scaled."""
    rng = random.Random(seed)
    jobs = [_job(rng, MIX[number % len(MIX)], scale, vocab) for number in range(count)]
    rng.shuffle(jobs)
    return jobs


def target_2(count: int, scale: float, vocab: int, seed: int) -> list[Job]:
    """Short inputs, short outputs."""
    rng = random.Random(seed)
    return [_job(rng, (SHORTER, SHORTER), scale, vocab) for _ in range(count)]


def _job(rng: random.Random, ranges: tuple[Range, Range], scale: float, vocab: int) -> Job:
    ins, outs = (round(rng.randint(*one) * scale) for one in ranges)
    return even_jobs(rng, vocab, 1, max(1, ins), max(SHORTEST_OUTPUT, outs))[0]
