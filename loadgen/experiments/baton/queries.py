"""The two query sets of Baton's evaluation (section 5.1), at any scale."""

from __future__ import annotations

import random
from itertools import cycle, islice

from loadgen.experiments.baton.paper import Target
from loadgen.experiments.engine.job import Job, draw_jobs

SHORTEST_OUTPUT = 2
"""A row with a single token never takes a slot, so that nothing would be left to compare."""


def draw_lengths(target: Target, count: int, seed: int) -> list[tuple[int, int]]:
    """Tokens of inputs and outputs before scaling, uniform in their ranges, shuffled."""
    rng = random.Random(seed)
    lengths = [(rng.randint(*ins), rng.randint(*outs)) for ins, outs in islice(cycle(target.mix), count)]
    rng.shuffle(lengths)
    return lengths


def draw_queries(target: Target, count: int, scale: float, vocab: int, seed: int) -> list[Job]:
    """Queries of random tokens, lengths times `scale`."""
    lengths = draw_lengths(target, count, seed)
    shapes = ((max(1, round(ins * scale)), max(SHORTEST_OUTPUT, round(outs * scale))) for ins, outs in lengths)
    return draw_jobs(random.Random(f"{seed}, tokens"), vocab, shapes)
