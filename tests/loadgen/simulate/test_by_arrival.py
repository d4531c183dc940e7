"""What the scheduler tells of its order against the order of arrival, beside both orders simulated on one load."""

import random
from dataclasses import replace
from math import inf

import pytest

from engine.sampling.params import SamplingParams
from engine.simulated.machine import Machine
from loadgen.simulate.node import Node, VirtualClock
from loadgen.workload.lengths import RequestLengths
from scheduler.request import BACKGROUND, Request, Unpromised
from scheduler.wait_estimate.by_arrival import FEWEST_WAITED, ArrivalComparison, EndedAnswer, compare
from tests.loadgen.simulate.test_simulation import GROWING, MACHINE, parts

LARGE = Machine(GROWING, capacity_tokens=30_000, max_num_seqs=16, context_length=1500)


def draw_load(count: int, rate: float, together: int, seed: int) -> list[RequestLengths]:
    """Requests in groups that come together, with answers of very different lengths."""
    rng, time, requests = random.Random(seed), 0.0, []
    for number in range(count):
        time += 0.0 if number % together else rng.expovariate(rate / together)
        requests.append(RequestLengths(time, rng.randint(5, 400), min(900, max(1, int(rng.lognormvariate(4, 1.2))))))
    return requests


def serve(name: str, load: list[RequestLengths]) -> tuple[list[Request], ArrivalComparison | None]:
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
            requests.append(node.submit((0,) * moment.input_length, sampling, float(moment.output_length)))
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
    assert told is not None and told.answers == len(load)
    assert told.latency == pytest.approx(mean_latency(done))
    assert told.normalized == pytest.approx(mean_per_token(done))
    true = mean_latency(done) / mean_latency(by_arrival)
    assert told.latency / told.latency_by_arrival == pytest.approx(true, abs=0.06)
    true = mean_per_token(done) / mean_per_token(by_arrival)
    assert told.normalized / told.normalized_by_arrival == pytest.approx(true, abs=0.09)
    assert told.normalized < told.normalized_by_arrival
    latest = max(latency(mine) - latency(other) for mine, other in zip(done, by_arrival, strict=True))
    assert told.latest == pytest.approx(latest, abs=0.25 * max(map(latency, by_arrival)))


@pytest.mark.parametrize(("rate", "together"), [(4, 1), (6, 1), (4, 50), (1000, 1)])
@pytest.mark.parametrize("name", ["baton-pd", "ccb", "vs", "baton"])
def test_in_order_of_arrival_there_is_no_gain(name: str, rate: float, together: int) -> None:
    """A wait that was foretold at arrival stood in for the order of arrival: 44 % too much, where it is that order."""
    _, told = serve(name, draw_load(600, rate, together, seed=2))
    assert told is not None and told.waited >= FEWEST_WAITED
    assert told.latency == pytest.approx(told.latency_by_arrival, rel=1e-9)
    assert told.normalized == pytest.approx(told.normalized_by_arrival, rel=1e-9)
    assert told.latest == pytest.approx(0, abs=1e-6)


def test_there_is_no_comparison_before_enough_answers_have_waited() -> None:
    _, told = serve("lengthwise", draw_load(LARGE.max_num_seqs + FEWEST_WAITED - 1, 1e6, 1, seed=3))
    assert told is None
    _, told = serve("lengthwise", draw_load(LARGE.max_num_seqs + FEWEST_WAITED + 2, 1e6, 1, seed=3))
    assert told is not None


def test_the_last_of_two_that_goes_first_makes_the_first_wait_for_it() -> None:
    """By hand, on one slot: a of 10 s comes before b of 1 s, and b is served first; in turn they end at 10 and 11."""
    other = [EndedAnswer(at, at, at + 5, 1, waited=True) for at in [100.0 + 10 * at for at in range(FEWEST_WAITED)]]
    told = compare([*other, EndedAnswer(0.0, 1.5, 11.5, 10, waited=True), EndedAnswer(0.1, 0.5, 1.5, 1, waited=True)])
    assert told is not None
    assert told.latency * told.answers == pytest.approx(5 * FEWEST_WAITED + 11.5 + 1.4)
    assert told.latency_by_arrival * told.answers == pytest.approx(5 * FEWEST_WAITED + 10.5 + 11.4)
    assert told.latest == pytest.approx(1.0)


def test_requests_that_are_refused_cancelled_or_in_the_background_count_for_nothing() -> None:
    clock = VirtualClock()
    node = Node(parts("lengthwise"), replace(MACHINE, max_num_seqs=1), clock)
    dispatcher, sampling = node._dispatcher, SamplingParams(5, replay_tokens=2)
    lines = [node.submit((0,) * 3, sampling, None, priority=BACKGROUND) for _ in range(2 * FEWEST_WAITED)]
    with pytest.raises(Unpromised):
        dispatcher.submit((0,) * 3, sampling, promised=clock.now())
    dispatcher.cancel(dispatcher.submit((0,) * 3, sampling))
    while node.due < inf:
        clock.move_to(node.due)
        node.advance()
    assert all(line.generated == 2 for line in lines)
    assert dispatcher.waits.by_arrival is None
