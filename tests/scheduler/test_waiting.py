"""The waiting queue: ranked by its order, and left at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.order import fcfs
from scheduler.request import Request
from scheduler.waiting import WaitingQueue
from tests.scheduler.fakes import request


def queue_of(*requests: Request) -> WaitingQueue:
    queue = WaitingQueue(fcfs)
    for one in requests:
        queue.add(one)
    return queue


def rows(queue: WaitingQueue) -> list[int]:
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

    queue = WaitingQueue(turning)
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
