"""The waiting queue: ranked by its order, and left at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.request import Request
from scheduler.waiting.order import ORDERS, Aging, fcfs
from scheduler.waiting.ranked import RankedQueue
from tests.scheduler.fakes import request


def queue_of(*requests: Request) -> RankedQueue:
    queue = RankedQueue(fcfs)
    for one in requests:
        queue.add(one)
    return queue


def rows(queue: RankedQueue) -> list[int]:
    return [one.row_id for one in queue]


def test_first_come_is_first_served_and_ties_keep_their_order() -> None:
    queue = queue_of(request(3, arrival=1), request(0, arrival=2), request(2, arrival=0.5), request(1, arrival=1))
    queue.rank(now=9.0)
    assert rows(queue) == [2, 1, 3, 0]


def test_priority_comes_before_arrival_and_lower_is_earlier() -> None:
    queue = queue_of(request(0), request(1, arrival=5, priority=-1), request(2, arrival=1, priority=2))
    queue.rank(now=9.0)
    assert rows(queue) == [1, 0, 2]


def test_an_order_may_change_its_mind_with_time() -> None:
    def turning(one: Request, now: float) -> tuple[float, ...]:
        return (one.row_id if now < 10 else -one.row_id,)

    queue = RankedQueue(turning)
    for row_id in (1, 0, 2):
        queue.add(request(row_id))
    queue.rank(now=0.0)
    assert rows(queue) == [0, 1, 2]
    queue.rank(now=10.0)
    assert rows(queue) == [2, 1, 0]


def test_a_request_leaves_once() -> None:
    one, other = request(0), request(1)
    queue = queue_of(one, other)
    assert (queue.position(one), queue.position(other)) == (0, 1)
    assert queue.discard(one) and not queue.discard(one)
    assert (queue.position(one), queue.position(other), len(queue)) == (None, 0, 1)


@given(keys=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5)), max_size=30), data=st.data())
def test_ranking_sorts_what_is_left(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    requests = [request(row_id, priority=rank, arrival=time) for row_id, (rank, time) in enumerate(keys)]
    queue = queue_of(*requests)
    left = [one for one in requests if not data.draw(st.booleans()) or not queue.discard(one)]
    queue.rank(now=0.0)
    assert list(queue) == sorted(left, key=lambda one: (one.priority, one.times.arrival, one.row_id))
    assert [queue.position(one) for one in queue] == list(range(len(left)))


@given(data=st.data())
def test_a_queue_that_ages_is_always_sorted_as_of_now(data: st.DataObject) -> None:
    """Requests come, go and come back with other predictions; the queue is held against a plain sort."""
    order = ORDERS["sjf-aged"](Aging(factor=2.0, seconds_per_token=1.0))
    queue, now, gone = RankedQueue(order), 0.0, list[Request]()
    for row_id in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.integers(0, 3))
        one = request(row_id, arrival=now, priority=data.draw(st.integers(0, 1)))
        one.predicted_length = data.draw(st.integers(1, 8))
        one.deadline = data.draw(st.one_of(st.none(), st.floats(0, 30)))
        queue.add(one)
        if data.draw(st.booleans()):
            gone.append(list(queue)[data.draw(st.integers(0, len(queue) - 1))])
            assert queue.discard(gone[-1])
        if data.draw(st.booleans()) and gone:
            back = gone.pop()
            back.generated += data.draw(st.integers(0, 3))
            queue.add(back)
        queue.rank(now)
        assert list(queue) == sorted(queue, key=lambda other: order(other, now))


def test_a_request_whose_prediction_changes_is_ranked_anew() -> None:
    queue = RankedQueue(ORDERS["sjf-aged"](Aging()))
    slow, quick = request(0), request(1)
    slow.predicted_length, quick.predicted_length = 8.0, 4.0
    for one in (slow, quick):
        queue.add(one)
    queue.rank(now=0.0)
    assert rows(queue) == [1, 0]
    slow.predicted_length = 2.0
    queue.revise(slow)
    queue.rank(now=0.0)
    assert rows(queue) == [0, 1]
    queue.discard(slow)
    queue.revise(slow)
    assert rows(queue) == [1]
