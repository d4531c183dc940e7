"""What the scheduler tells of its order against the order of arrival, beside both orders simulated on one load."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from engine.sampling.params import SamplingParams
from engine.simulated.machine import Machine
from loadgen.simulate.node import Node, VirtualClock
from loadgen.workload.lengths import Lengths
from scheduler.request import BACKGROUND, Request, TooLate
from scheduler.wait_estimate.completion import Comparison
from tests.loadgen.simulate.test_simulation import GROWING, MACHINE, parts

LARGE = Machine(GROWING, capacity_tokens=30_000, max_num_seqs=16, context_length=1500)


def draw_load(count: int, rate: float, together: int, seed: int) -> list[Lengths]:
    """Requests in groups that come together, with answers of very different lengths."""
    rng, time, requests = random.Random(seed), 0.0, []
    for number in range(count):
        time += 0.0 if number % together else rng.expovariate(rate / together)
        requests.append(Lengths(time, rng.randint(5, 400), min(900, max(1, int(rng.lognormvariate(4, 1.2))))))
    return requests


def serve(name: str, load: list[Lengths]) -> tuple[list[Request], Comparison]:
    """The requests once they have ended, and what was told of them."""
    clock = VirtualClock()
    node, requests = Node(parts(name, LARGE, prefill_ahead=2), LARGE, clock), list[Request]()
    for moment in (*load, None):
        while node.due <= (inf if moment is None else moment.arrival) and node.due < inf:
            clock.move_to(node.due)
            node.advance()
        if moment is not None:
            clock.move_to(moment.arrival)
            sampling = SamplingParams(1000, replay_tokens=moment.output_length)
            requests.append(node.submit((0,) * moment.input_length, sampling, "", float(moment.output_length)))
    return requests, node._dispatcher.waits.by_arrival


def mean_latency(done: list[Request]) -> float:
    return sum(latency(one) for one in done) / len(done)


def mean_per_token(done: list[Request]) -> float:
    return sum(latency(one) / one.generated for one in done) / len(done)


def latency(one: Request) -> float:
    assert one.times.end is not None
    return one.times.end - one.times.arrival


@pytest.mark.parametrize(("rate", "together"), [(4, 1), (6, 1), (4, 50), (1000, 1)])
def test_the_gain_that_is_told_is_the_gain_over_order_of_arrival(rate: float, together: int) -> None:
    load = draw_load(600, rate, together, seed=1)
    by_arrival, _ = serve("baton-pd", load)
    done, told = serve("lengthwise", load)
    assert told.requests >= 0.99 * len(load), "a few end before anything has been measured"
    assert told.latency / told.requests == pytest.approx(mean_latency(done), rel=0.01)
    assert told.per_token / told.requests == pytest.approx(mean_per_token(done), rel=0.01)
    assert told.latency / told.latency_by_arrival == pytest.approx(
        mean_latency(done) / mean_latency(by_arrival), abs=0.04
    )
    true = mean_per_token(done) / mean_per_token(by_arrival)
    assert told.per_token / told.per_token_by_arrival == pytest.approx(true, abs=0.06)
    latest = max(latency(mine) - latency(other) for mine, other in zip(done, by_arrival, strict=True))
    assert told.latest == pytest.approx(latest, abs=0.25 * max(map(latency, by_arrival)))


@pytest.mark.parametrize("rate", [2.5, 4, 6])
def test_by_order_of_arrival_no_gain_is_told(rate: float) -> None:
    _, told = serve("baton-pd", draw_load(600, rate, 1, seed=2))
    assert told.latency / told.latency_by_arrival == pytest.approx(1, abs=0.04)


def test_requests_that_are_refused_cancelled_or_in_the_background_hold_up_no_figure() -> None:
    clock = VirtualClock()
    dispatcher = Node(parts("lengthwise"), replace(MACHINE, max_num_seqs=1), clock)._dispatcher
    sampling = SamplingParams(5, replay_tokens=2)
    lines = dispatcher.submit((0,) * 3, sampling, priority=BACKGROUND)
    with pytest.raises(TooLate):
        dispatcher.submit((0,) * 3, sampling, deadline=clock.now())
    left = dispatcher.submit((0,) * 3, sampling)
    dispatcher.cancel(left)
    dispatcher.cancel(lines)
    assert dispatcher.waits.by_arrival.requests == 0
