"""How long the lines of a batch take on a machine by themselves, in virtual time: no longer than any other way."""

import math
import random
from collections.abc import Sequence

import pytest

from engine.sampling.params import SamplingParams
from engine.simulated.machine import Machine
from loadgen.simulate.node import Node, VirtualClock
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.request import BACKGROUND, Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from server.batches.batches import LINES_PER_SLOT

SLOTS = 16

COST = Bilinear(p1=9e-4, p2=0.0, p3=0.0, p4=0.02, d1=1e-6, d2=8e-4, d3=0.0, d4=0.04)
"""Seconds of steps on a small CPU."""

MACHINE = Machine(COST, 2048 * SLOTS, SLOTS, 2048, max_prefill_tokens=512, runs_ahead=True)

LATE = 0.1
"""Seconds from a line's last token until the next line is with the dispatcher: two steps."""


def draw_lines(count: int) -> list[tuple[int, int]]:
    """Tokens of prompts and answers."""
    draw = random.Random(0)
    return [
        (min(400, max(8, round(draw.lognormvariate(3.5, 1.0)))), min(128, max(4, round(draw.lognormvariate(3.0, 0.8)))))
        for _ in range(count)
    ]


def serve(lines: Sequence[tuple[int, int]], priorities: Sequence[int], at_a_time: int) -> float:
    """Seconds until all lines have their answers, of which so many are with the dispatcher at a time."""
    clock, waiting = VirtualClock(), [*zip(lines, priorities, strict=True)][::-1]
    limits = BatchLimits(group_tokens=512, prefill_ahead=2).within(MACHINE.capacity_tokens, 2048, SLOTS)
    node = Node(assemble(STRATEGIES["lengthwise"], limits, COST), MACHINE, clock)
    asked: list[Request] = []
    due = [0.0] * at_a_time  # when another line may come, soonest first
    while waiting or asked:
        clock.move_to(min(node.due, due[0] if due and waiting else math.inf))
        while due and waiting and due[0] <= clock.now():
            due.pop(0)
            (prompt, tokens), priority = waiting.pop()
            sampling = SamplingParams(512, replay_tokens=tokens)
            asked.append(node.submit((0,) * prompt, sampling, float(tokens), priority=priority))
        node.advance()
        due = sorted([*due, *(one.times.end + LATE for one in asked if one.times.end is not None)])
        asked = [one for one in asked if one.times.end is None]
    return clock.now()


@pytest.mark.parametrize("count", [50, 200])
def test_a_batch_takes_no_longer_than_its_lines_submitted_at_once(count: int) -> None:
    """Of many lines it took longer: none waited when a slot was free, and each prompt was read by itself."""
    lines = draw_lines(count)
    batch = serve(lines, [BACKGROUND] * count, LINES_PER_SLOT * SLOTS)
    assert batch <= 1.05 * serve(lines, [0] * count, count)
    assert batch <= 1.05 * serve(lines, range(count), count)
