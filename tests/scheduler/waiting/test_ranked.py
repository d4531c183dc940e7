"""The waiting queue: ranked by its order, left at any time, with the sums of what is ahead of each; who comes first, by
hand; and the bound on how long the shortest job first lets a long one wait."""

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

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
from scheduler.waiting.by_length import AgedSjf, Aging, ByRank, Fcfs, Sjf
from scheduler.waiting.order import Order
from scheduler.waiting.prices import device_prices
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Key, QueueAhead, SortedRequests
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import fill, first, queue_by


def test_who_comes_moves_those_whose_key_has_changed_so_that_a_late_decision_need_not() -> None:
    """After a minute without a decision, one re-keyed thousands of requests, some 12 microseconds each."""
    keys: list[int] = []

    class Changing(Order):
        def key(self, one: Request, now: float) -> tuple[float, ...]:
            keys.append(one.row_id)
            return (0.0, float(one.row_id))

        def changes_at(self, one: Request) -> tuple[float, ...]:
            return (one.times.arrival + 5.0,)

    queue = queue_by(Changing(), *(request(place, arrival=place) for place in range(1000)))
    keys.clear()
    queue.ranked(1000.0)
    assert len(keys) <= 6


@given(keys=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5)), max_size=30), data=st.data())
def test_ranking_sorts_what_is_left(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    requests = [request(row_id, priority=rank, arrival=time) for row_id, (rank, time) in enumerate(keys)]
    queue = queue_by(Fcfs(), *requests)
    left = [one for one in requests if not data.draw(st.booleans()) or not queue.discard(one)]
    assert not any(one in queue or queue.discard(one) for one in requests if one not in left)
    assert list(queue.ranked(0.0)) == sorted(left, key=lambda one: (one.priority, one.times.arrival, one.row_id))
    assert set(queue) == set(left) and len(queue) == len(left)
    if left:
        assert queue.best_priority == min(one.priority for one in left)


@given(data=st.data())
def test_a_queue_that_ages_is_always_sorted_as_of_now(data: st.DataObject) -> None:
    """Requests come, go and come back with other predictions; the queue is held against a plain sort."""
    order = ByRank(aging := Aging(seconds_per_token=0.01))
    key, queue, now, gone = RankedQueue(order, aging).key, RankedQueue(order, aging), 0.0, list[Request]()
    for row_id in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.integers(0, 3))
        known = st.fixed_dictionaries({"priority": st.integers(0, 1), "predicted_length": st.integers(1, 8)})
        deadline = data.draw(st.one_of(st.none(), st.floats(0, 30)))
        queue.add(request(row_id, arrival=now, deadline=deadline, **data.draw(known)))
        if data.draw(st.booleans()):
            gone.append(list(queue.ranked(now))[data.draw(st.integers(0, len(queue) - 1))])
            assert queue.discard(gone[-1])
        if data.draw(st.booleans()) and gone:
            back = gone.pop()
            back.generated += data.draw(st.integers(0, 3))
            queue.add(back)
        assert list(queue.ranked(now)) == sorted(queue, key=lambda other: key(other, now))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_order_and_sums_are_those_of_a_plain_list(seed: int) -> None:
    rng, found, plain = random.Random(seed), SortedRequests(), dict[Key, Request]()
    for number in range(600):
        if plain and rng.random() < 0.45:
            gone = plain.pop(rng.choice(list(plain)))
            assert found.remove(gone) and not found.remove(gone)
        else:
            one = request(number, rng.randint(1, 30), max_tokens=50)
            one.predicted_length = rng.choice((None, rng.randint(1, 40)))
            key: Key = (rng.randint(0, 20), number)
            found.insert(key, one)
            plain[key] = one
        ranked = sorted(plain)
        assert list(found) == [plain[key] for key in ranked] and len(found.keys) == len(plain)
        for key in (*ranked[:: max(1, len(ranked) // 5)], (-1, 0), (99, 0)):
            ahead = [plain[other] for other in ranked if other < key]
            known = [one.predicted_length for one in ahead if one.predicted_length is not None]
            unread = sum(one.input_length for one in ahead)
            assert found.ahead(key) == QueueAhead(len(ahead), sum(known), len(ahead) - len(known), unread)


AGING = Aging(factor=10.0, seconds_per_token=0.5)
"""A request of G predicted tokens starves after 5 x G seconds."""


def asking(row_id: int, predicted: float | None, **others: Any) -> Request:
    """A request for 8 tokens at most."""
    return request(row_id, predicted_length=predicted, **others)


def ranked(order: Order, now: float, *requests: Request) -> list[int]:
    return first(fill(RankedQueue(order, AGING), *requests), now=now)


def order_of(name: str) -> Order:
    limits = BatchLimits(group_tokens=64, prefill_ahead=0, seconds_per_token=AGING.seconds_per_token)
    return ORDERS[name](limits, device_prices)


def test_the_shortest_is_first_by_what_is_left_of_its_prediction() -> None:
    five_left, two_left, three_left = asking(0, 5.0), asking(1, 6.0, generated=4), asking(2, 3.0)
    assert ranked(Sjf(), 0.0, five_left, two_left, three_left) == [1, 2, 0]


def test_all_go_by_arrival_once_the_oldest_has_waited_a_factor_of_its_time_or_a_hundred_seconds() -> None:
    """8 tokens are 4 seconds, ten times that is 40; the others came late."""
    requests = asking(0, 8.0), asking(1, 1.0, arrival=39.0), asking(2, 2.0, arrival=39.5)
    assert [ranked(AgedSjf(AGING), now, *requests) for now in (40.0, 40.1)] == [[1, 2, 0], [0, 1, 2]]
    unknown = request(0, max_tokens=1000), asking(1, 1.0, arrival=99.0)
    assert [ranked(AgedSjf(AGING), now, *unknown) for now in (100.0, 100.1)] == [[1, 0], [0, 1]]


def test_only_the_oldest_of_a_priority_is_moved_forward_and_none_by_a_factor_of_nothing() -> None:
    """One of a token has waited 9 s, more than ten times its half second, but is not the oldest."""
    requests = asking(0, 8.0), asking(1, 2.0, arrival=30.0), asking(2, 1.0, arrival=39.0)
    assert ranked(AgedSjf(AGING), 39.9, *requests) == [2, 1, 0]
    assert ranked(AgedSjf(AGING), 100.0, asking(0, 2.0), asking(1, 8.0, arrival=99.0, priority=-1)) == [1, 0]
    assert ranked(AgedSjf(Aging(0.0, 0.5)), 1000.0, *requests) == [2, 1, 0]


@pytest.mark.parametrize("name", ORDERS)
def test_a_request_is_moved_forward_when_it_would_miss_its_deadline(name: str) -> None:
    """8 tokens are 4 seconds, and the answer is wanted at 10: with twice that left it is due."""
    requests = asking(0, 8.0, arrival=1.5, deadline=10.0), asking(1, 1.0, arrival=1.0)
    assert [ranked(order_of(name), now, *requests) for now in (1.9, 2.0)] == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", ORDERS)
def test_classes_come_first_then_deadlines_then_the_order(name: str) -> None:
    requests = (
        asking(0, 2.0, arrival=1.0),
        asking(1, 2.0, arrival=0.0),
        asking(2, 2.0, arrival=2.0, deadline=12.0),
        asking(3, 2.0, arrival=3.0, deadline=11.0),
        asking(4, 2.0, arrival=4.0, deadline=1000.0),
        asking(5, 2.0, arrival=9.0, priority=-1),
    )
    assert ranked(order_of(name), 10.0, *requests) == [5, 3, 2, 1, 0, 4]


def test_what_is_due_goes_before_what_has_aged() -> None:
    aged, due = asking(0, 1.0), asking(1, 8.0, arrival=90.0, deadline=104.0)
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
    requests = [asking(place, 8.0 - place, arrival=float(place), priority=BACKGROUND) for place in range(6)]
    assert ranked(order_of(name), 100.0, *requests[::-1]) == list(range(6))
