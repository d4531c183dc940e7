"""Who comes first, by hand; and the bound on how long the shortest job first lets a long one wait."""

import random
from typing import Any

import pytest

from engine.simulated.machine import Machine
from loadgen.simulate.simulation import Served, fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.assembly import ORDERS
from scheduler.batching.batcher import BatchLimits
from scheduler.length.oracle import true_length
from scheduler.options import Scheduling
from scheduler.request import BACKGROUND, Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from scheduler.waiting.by_length import AgedSjf, Aging, Sjf
from scheduler.waiting.order import Order
from scheduler.waiting.prices import device_prices
from scheduler.waiting.queue import RankedQueue
from tests.scheduler.fakes import request as bare
from tests.scheduler.waiting.predicted import fill, first

AGING = Aging(factor=10.0, seconds_per_token=0.5)
"""A request of G predicted tokens starves after 5 x G seconds."""


def request(row_id: int, predicted: float | None, **others: Any) -> Request:
    """A request for 8 tokens at most."""
    return bare(row_id, predicted_length=predicted, **others)


def ranked(order: Order, now: float, *requests: Request) -> list[int]:
    return first(fill(RankedQueue(order, AGING), *requests), now=now)


def order_of(name: str) -> Order:
    limits = BatchLimits(group_tokens=64, prefill_ahead=0, seconds_per_token=AGING.seconds_per_token)
    return ORDERS[name](limits, device_prices)


def test_the_shortest_is_first_by_what_is_left_of_its_prediction() -> None:
    five_left, two_left, three_left = request(0, 5.0), request(1, 6.0, generated=4), request(2, 3.0)
    assert ranked(Sjf(), 0.0, five_left, two_left, three_left) == [1, 2, 0]


def test_all_go_by_arrival_once_the_oldest_has_waited_a_factor_of_its_time_or_a_hundred_seconds() -> None:
    """8 tokens are 4 seconds, ten times that is 40; the others came late."""
    requests = request(0, 8.0), request(1, 1.0, arrival=39.0), request(2, 2.0, arrival=39.5)
    assert [ranked(AgedSjf(AGING), now, *requests) for now in (40.0, 40.1)] == [[1, 2, 0], [0, 1, 2]]
    unknown = bare(0, max_tokens=1000), request(1, 1.0, arrival=99.0)
    assert [ranked(AgedSjf(AGING), now, *unknown) for now in (100.0, 100.1)] == [[1, 0], [0, 1]]


def test_only_the_oldest_of_a_priority_is_moved_forward_and_none_by_a_factor_of_nothing() -> None:
    """One of a token has waited 9 s, more than ten times its half second, but is not the oldest."""
    requests = request(0, 8.0), request(1, 2.0, arrival=30.0), request(2, 1.0, arrival=39.0)
    assert ranked(AgedSjf(AGING), 39.9, *requests) == [2, 1, 0]
    assert ranked(AgedSjf(AGING), 100.0, request(0, 2.0), request(1, 8.0, arrival=99.0, priority=-1)) == [1, 0]
    assert ranked(AgedSjf(Aging(0.0, 0.5)), 1000.0, *requests) == [2, 1, 0]


@pytest.mark.parametrize("name", ORDERS)
def test_a_request_is_moved_forward_when_it_would_miss_its_deadline(name: str) -> None:
    """8 tokens are 4 seconds, and the answer is wanted at 10: with twice that left it is due."""
    requests = request(0, 8.0, arrival=1.5, deadline=10.0), request(1, 1.0, arrival=1.0)
    assert [ranked(order_of(name), now, *requests) for now in (1.9, 2.0)] == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", ORDERS)
def test_classes_come_first_then_deadlines_then_the_order(name: str) -> None:
    requests = (
        request(0, 2.0, arrival=1.0),
        request(1, 2.0, arrival=0.0),
        request(2, 2.0, arrival=2.0, deadline=12.0),
        request(3, 2.0, arrival=3.0, deadline=11.0),
        request(4, 2.0, arrival=4.0, deadline=1000.0),
        request(5, 2.0, arrival=9.0, priority=-1),
    )
    assert ranked(order_of(name), 10.0, *requests) == [5, 3, 2, 1, 0, 4]


def test_what_is_due_goes_before_what_has_aged() -> None:
    aged, due = request(0, 1.0), request(1, 8.0, arrival=90.0, deadline=104.0)
    assert ranked(order_of("sjf-aged"), 100.0, aged, due) == [1, 0]


TOKEN, SHORT, LONG = 0.1, 5, 100
"""Seconds of an iteration; tokens of the short answers and of the long one."""

COST = Bilinear(0.0, 0.0, 0.0, TOKEN, 0.0, 0.0, 0.0, TOKEN)
"""The first token comes with the prefill, so an answer of n tokens takes n x TOKEN."""


def long_one_among_short_ones(strategy: str, factor: float, seed: int | None) -> tuple[Served, list[Served]]:
    """Ten short requests and the long one come at once, then short ones as fast as they are served, or faster."""
    rng, time = random.Random(seed), 0.0
    trace = [RequestLengths(0.0, 4, LONG if place == 10 else SHORT) for place in range(11)]
    for _ in range(400):
        time += SHORT * TOKEN * (1.0 if seed is None else rng.uniform(0.4, 1.4))
        trace.append(RequestLengths(time, 4, SHORT))
    options = Scheduling(slice_length=16, aging_factor=factor)
    limits = BatchLimits(group_tokens=512, prefill_ahead=0, options=options, seconds_per_token=TOKEN)
    machine = Machine(COST, capacity_tokens=1000, max_num_seqs=1, context_length=500)
    parts = fit_parts(STRATEGIES[strategy], limits, machine, COST)
    done = simulate(parts, machine, trace, LONG, predict=true_length).requests
    [long_one] = [one for one in done if one.output_length == LONG]
    return long_one, [one for one in done if one is not long_one]


@pytest.mark.parametrize("strategy", ["ssjf-none", "lengthwise"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_long_request_ends_however_many_short_ones_come(strategy: str, seed: int | None) -> None:
    long_one, others = long_one_among_short_ones(strategy, 2.0, seed)
    assert max(one.arrival for one in others) > long_one.end, "short ones still came"


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_without_aging_it_ends_when_short_ones_come_no_more(seed: int | None) -> None:
    """So that the test above cannot pass by luck."""
    long_one, others = long_one_among_short_ones("sjf-oracle-none", 10.0, seed)
    assert long_one.started > max(one.arrival for one in others)


@pytest.mark.parametrize("name", ORDERS)
def test_background_requests_keep_the_order_in_which_they_came(name: str) -> None:
    """Their batch has put them in order, the longest first, and orders that like short ones turned it round."""
    requests = [request(place, 8.0 - place, arrival=float(place), priority=BACKGROUND) for place in range(6)]
    assert ranked(order_of(name), 100.0, *requests[::-1]) == list(range(6))
