"""The waiting queue: ranked by its order, left at any time, and with the sums of what is ahead of each."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.request import Request
from scheduler.waiting.by_length import Aging, ByRank, Fcfs
from scheduler.waiting.order import Order
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import Key, QueueAhead, SortedRequests
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import first, queue_by


def test_an_order_may_change_its_mind_with_time() -> None:
    class Reversing(Order):
        def key(self, one: Request, now: float) -> tuple[float, ...]:
            return (0.0, one.row_id if now < 10 else -one.row_id)

        def changes_at(self, one: Request) -> tuple[float, ...]:
            return (10.0,)

    queue = queue_by(Reversing(), *(request(row_id) for row_id in (1, 0, 2)))
    assert first(queue, now=0.0) == [0, 1, 2] and first(queue, now=10.0) == [2, 1, 0]


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
