"""The default's order by hand, its bound on random arrivals, and what it says of places."""

import random
from dataclasses import dataclass, field
from math import log

import pytest
from hypothesis import given, settings, strategies as st

from scheduler.request import Request
from scheduler.wait_estimate.completion import Expected
from scheduler.waiting.out_of_turn import OutOfTurn
from scheduler.waiting.queue import RankedQueue
from scheduler.waiting.sorted_requests import QueueAhead
from tests.scheduler.waiting.predicted import fill, first, predicted, program, queue_by, serve


def queue_of(*requests: Request, share: float = 0.5, slots: float = 4.0, keeps: bool = True) -> RankedQueue:
    return queue_by(OutOfTurn(share, slots, keeps=keeps), *requests)


def earn(queue: RankedQueue, work: float) -> None:
    """Let the queue serve so much work in turn, of which half may then go out of turn."""
    one = predicted(10_000, work, arrival=-1.0, priority=-9)
    fill(queue, one)
    queue.serve(one)
    one.generated = round(work)
    queue.order.ended(one)
    next(iter(queue.ranked(0.0)), None)


RANKED = [
    ([20.0, 20.0, 8.0], 0.0, [0, 2, 1]),  # by arrival, until 20 in turn pay for 20 out of turn
    ([100.0, 6.0, 5.0, 4.0, 90.0], 10.0, [3, 2, 0, 1, 4]),  # the cheapest while the credit pays
    ([10.0, 6.0, 13.0, 5.5], 40.0, [0, 1, 3, 2]),  # one passes only what costs twice as much
    ([10.0 + row_id % 3 for row_id in range(20)], 100.0, list(range(20))),
]


@pytest.mark.parametrize(("lengths", "earned", "ranked"), RANKED)
def test_the_cheapest_pass_while_credit_pays(lengths: list[float], earned: float, ranked: list[int]) -> None:
    """Which work in turn has earned."""
    queue = queue_of(*(predicted(row_id, length) for row_id, length in enumerate(lengths)))
    if earned:
        earn(queue, earned)
    assert first(queue, 20) == ranked


def test_without_a_share_it_is_first_come_first_served() -> None:
    queue = queue_of(predicted(0, 80.0), predicted(1, 1.0), share=0.0)
    serve(queue, 0)
    queue.add(predicted(2, 0.5))
    assert first(queue) == [1, 2]


def test_better_priorities_come_first_and_what_is_due_keeps_its_place() -> None:
    """6 tokens are 6 seconds, and with twice that left until its deadline a request is due: at 8."""
    queue = queue_of(predicted(0, 50.0), predicted(1, 6.0, deadline=20.0), predicted(2, 9.0, priority=-1))
    earn(queue, 100.0)
    fill(queue, predicted(3, 1.0))
    assert (first(queue, now=7.9), first(queue, now=8.0)) == ([2, 3, 1, 0], [2, 1, 3, 0])
    assert queue.best_priority == -1


def test_a_request_is_where_its_new_prediction_puts_it() -> None:
    changing = predicted(1, 60.0)
    queue = queue_of(predicted(0, 50.0), changing)
    earn(queue, 30.0)
    assert first(queue) == [0, 1]
    changing.predicted_length = 10.0
    queue.revise(changing)
    assert first(queue) == [1, 0]
    serve(queue, 1)
    queue.revise(changing)
    assert first(queue) == [0]


def test_what_goes_out_of_turn_and_takes_longer_than_predicted_is_charged_for_it() -> None:
    queue = queue_of(predicted(0, 100.0), predicted(1, 10.0), predicted(2, 10.0))
    earn(queue, 25.0)
    assert first(queue) == [1, 2, 0]
    liar = next(iter(queue.ranked(0.0)))
    queue.serve(liar)
    liar.generated = 24
    assert first(queue) == [0, 2]


@dataclass
class Device:
    """One slot that serves what the queue says, and answers that become longer or shorter than predicted."""

    queue: RankedQueue
    rng: random.Random
    taken: float = 0.0
    true: dict[Request, float] = field(default_factory=dict)

    def take(self, now: float) -> Request:
        one = next(iter(self.queue.ranked(now)))
        self.queue.serve(one)
        one.generated = round(self.true[one])
        self.queue.order.ended(one)
        self.taken += self.true.pop(one)
        return one


@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.3, 0.5]), st.sampled_from([1.0, 4.0, 16.0]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_request_waits_longer_than_the_bound(seed: int, share: float, slots: float, misled: bool) -> None:
    """B / (1 - x) + C + w* in true work, where a plan is one request; C by the largest mean, since it changes.

    Half have promises, some of which cannot be kept. `misled`: predictions are the lengths of other requests, else some
    are programs' calls, which pass each other. Of w* two are let pass: what the latest out of turn had beyond its
    prediction, and the last plan's own.
    """
    rng = random.Random(seed)
    programs = [None] if misled else [None, *(program(rest=rng.uniform(0, 90), service=1e6) for _ in range(5))]
    order = OutOfTurn(share, slots)
    device = Device(queue_by(order), rng)
    spread, due, clock = rng.uniform(0.2, 2.0), 0.0, 0.0
    load = rng.uniform(0.8, 2.0)
    came: dict[Request, tuple[float, float]] = {}
    most = largest = 0.0
    for row_id in range(150):
        due += rng.expovariate(load) * 20 * 2.718 ** (spread**2 / 2)
        while len(device.queue) and clock < due:
            one = device.take(clock)
            waited_there, before = came.pop(one)
            clock, most = clock + one.generated, max(most, order._credit.most)
            waited = device.taken - one.generated - before
            assert one.program or waited <= waited_there / (1 - share) + most + 2 * largest + 1e-6
        clock = max(clock, due)
        true = max(1.0, round(rng.lognormvariate(3, spread)))
        told = max(1.0, round(rng.lognormvariate(3, spread))) if misled else true
        one, largest = predicted(row_id, told, arrival=due), max(largest, true, told)
        if rng.random() < 0.5:
            asked = rng.random() < 0.5
            promised(one, due + rng.uniform(0, 400), true, asked=asked, goes=asked and rng.random() < 0.5)
        one.program = rng.choice(programs)
        came[one] = sum(device.true.values()), device.taken
        device.true[one] = true
        device.queue.add(one)
        most = max(most, order._credit.most)


def test_a_newcomer_is_told_about_where_it_will_be_and_the_dear_ones_that_they_are_last() -> None:
    queue = queue_of(*(predicted(row_id, 100.0) for row_id in range(100)), share=0.3, slots=8.0)
    earn(queue, 1000.0)
    cheap, dear = predicted(200, 10.0), predicted(201, 5000.0)
    assert queue.ahead(dear, 0.0) == queue.total()
    told = queue.ahead(cheap, 0.0).place
    queue.add(cheap)
    assert abs(told - first(queue, 200).index(200)) <= 2


@pytest.mark.parametrize(("longer", "place"), [(0, 60), (20, 0)])
def test_a_newcomer_is_last_where_it_may_pass_none(longer: int, place: int) -> None:
    """Of alike lengths those with short prompts were told to be next."""
    alike = (predicted(row_id, 10.0 + row_id % 5) for row_id in range(longer, 60))
    queue = queue_of(*(predicted(row_id, 30.0) for row_id in range(longer)), *alike)
    earn(queue, 100.0)
    assert queue.ahead(predicted(200, 9.0), 0.0).place == place


def test_how_far_newcomers_may_pass_a_request_is_told_in_work() -> None:
    queue = queue_of(predicted(0, 100.0), predicted(1, 100.0), share=0.5)
    assert queue.order.passed_by(queue.total()._replace(place=1, tokens=100.0, unread=0)) == pytest.approx(100.0)


def promised(one: Request, by: float, own: float = 10.0, *, asked: bool = False, goes: bool = False) -> Request:
    """`goes` first: else it could not have been given."""
    one.expected = Expected(0.0, 0, 0.0, own, own, 1.0, own_spread=log(1.5), high=by, waits=True, first=goes)
    one.promised = by if asked else None
    return one


def test_what_is_due_by_its_promise_goes_before_what_is_cheaper_and_asked_for_before_told() -> None:
    """One of 10 seconds, 15 at most, is due 15 before its promise."""
    told, asked = promised(predicted(1, 30.0), 100.0), promised(predicted(2, 40.0), 110.0, asked=True)
    queue = queue_of(predicted(0, 100.0), told, asked, predicted(3, 5.0))
    earn(queue, 90.0)
    assert (first(queue, now=84.9), first(queue, now=85.0)) == ([3, 1, 2, 0], [1, 3, 2, 0])
    assert first(queue, now=95.0) == [2, 1, 3, 0]


def test_what_is_due_passes_only_what_costs_twice_as_much_and_by_the_same_credit() -> None:
    queue = queue_of(predicted(0, 50.0), promised(predicted(1, 30.0), 0.0), promised(predicted(2, 20.0), 1.0))
    assert first(queue) == [0, 1, 2], "the third costs more than half of the second, and nothing was earned before"
    earn(queue, 25.0)
    assert first(queue) == [2, 0, 1], "the second costs more than half of the first"


def test_a_promise_that_needs_it_goes_first_at_any_size_on_credit_that_others_leave_alone() -> None:
    queue, asked = queue_of(predicted(0, 50.0), predicted(1, 20.0)), predicted(2, 40.0)
    assert queue.order.ahead_of_asked(asked) is None, "nothing pays for it"
    earn(queue, 48.0)
    assert queue.order.ahead_of_asked(asked) == QueueAhead()
    queue.add(promised(asked, 100.0, asked=True, goes=True))
    assert first(queue) == [2, 0, 1], "the cheaper one would have gone first, and left too little"
    assert queue.order.ahead_of_asked(predicted(3, 5.0)) == QueueAhead(1, 40.0, unread=4)
    assert queue.order.ahead_of_asked(predicted(3, 8.0)) is None, "most of the credit is set aside"
    queue.serve(asked)
    asked.generated = 40
    queue.order.ended(asked)
    assert first(queue) == [0, 1] and queue.order.ahead_of_asked(predicted(3, 5.0)) == QueueAhead()


def test_without_a_share_or_where_it_is_not_wanted_no_promise_is_kept() -> None:
    assert not OutOfTurn(0.0, 4.0).keeps and OutOfTurn(0.3, 4.0).keeps
    queue = queue_of(predicted(0, 100.0), promised(predicted(1, 30.0), 0.0), predicted(2, 5.0), keeps=False)
    earn(queue, 50.0)
    assert first(queue) == [2, 1, 0]
