"""Orders of programs by hand."""

import random

import pytest

from scheduler.assembly import ORDERS
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.programs.program import Program
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from scheduler.waiting.out_of_turn import OutOfTurn
from scheduler.waiting.prices import device_prices
from scheduler.waiting.queue import RankedQueue
from tests.scheduler.waiting.predicted import fill, first, predicted, program, queue_by, serve
from tests.scheduler.waiting.test_out_of_turn import earn, queue_of

LIMITS = BatchLimits(100, 1, Scheduling(), capacity_tokens=100, slots=4)


def queue_named(name: str, *calls: Request) -> RankedQueue:
    return queue_by(ORDERS[str(STRATEGIES[name].order)](LIMITS, device_prices), *calls)


def call(row_id: int, of: Program | None, length: float = 10.0, tokens: int = 1) -> Request:
    one = predicted(row_id, length, program=of, cached_prompt=tokens)
    one.prompt = (0,) * tokens
    return one


def test_the_earliest_program_goes_first_or_the_one_that_had_least_by_levels() -> None:
    old = program(arrival=-5.0)
    calls = call(0, program(arrival=-1.0)), call(1, None), call(2, old), call(3, old)
    assert first(queue_named("program-fcfs", *calls)) == [2, 3, 0, 1]
    calls = call(0, program(service=40.0)), call(1, program(service=33.0)), call(2, program(service=3.0)), call(3, None)
    assert first(queue_named("plas", *calls)) == [3, 2, 0, 1]


def test_programs_go_by_when_they_would_end_if_all_shared_the_device() -> None:
    """Ends of 30, 10 and 20; once 20 of work are served to three, a newcomer of 10 ends at 6 2/3 + 10."""
    long, short = program(rest=0.0), program(rest=0.0)
    queue = queue_named("justitia", call(0, long, 30.0), call(1, short, 10.0), call(2, None, 20.0))
    assert first(queue) == [1, 2, 0]
    serve(queue, 2)
    fill(queue, call(3, None, 10.0), call(4, None, 2.0), call(5, short, 500.0))
    assert first(queue) == [4, 1, 5, 3, 0]


def test_beyond_the_memory_the_smallest_between_calls_are_paused_and_the_largest_resumed() -> None:
    """100 tokens: of 60, 30 and 20 that are active and idle the one of 20 is paused; of two that ask 30 and 10 fit."""
    programs = [program(tokens=size) for size in (60, 30, 20)]
    queue = queue_named("thunder", *(call(row, one, tokens=one.tokens) for row, one in enumerate(programs[:2])))
    assert first(queue) == [0, 1]
    for row in (0, 1):
        serve(queue, row)
    fill(queue, call(2, programs[2], tokens=20), call(3, None), call(4, program(tokens=5), tokens=10))
    assert first(queue) == [3, 4, 2], "20 do not fit beside 90; 10 do"
    for one in programs[:2]:
        one.open = 0
    programs[0].tokens = 85
    assert first(queue) == [3, 4, 2], "85 + 30 + 5 are too much: 30 goes"


def test_the_default_jumps_by_what_is_left_of_the_program() -> None:
    """A call as cheap as another, of a program that has much before it, does not jump."""
    calls = [call(row, of, length) for row, (length, of) in enumerate([(50, None), (5, program(rest=90)), (6, None)])]
    queue = queue_of(*calls)
    earn(queue, 20.0)
    assert first(queue) == [2, 0, 1]


def test_programs_calls_take_each_others_places_by_what_is_left_and_no_others() -> None:
    """The last program is done first, in the place of the first, which gets the last one's behind the chat."""
    long, short = program(rest=90.0, service=100.0), program(rest=0.0)
    queue = queue_of(call(0, long), call(1, None, 90.0), call(2, short), call(3, None, 90.0))
    assert first(queue) == [2, 1, 0, 3]
    serve(queue, 2)
    assert first(queue) == [1, 0, 3] and (long.lent, short.lent) == (10.0, -10.0)


def test_a_program_lets_pass_at_most_half_of_its_work() -> None:
    """Of 20 had and 27.5 expected."""
    queue, served = queue_of(call(0, program(rest=30.0, service=20.0)), share=0.5), list[int]()
    while 0 not in served:
        fill(queue, call(len(served) + 1, program(rest=15.0)))
        served += first(queue, 1)
        serve(queue, served[-1])
    assert served == [1, 2, 0]


def test_a_chat_is_passed_within_its_bound_where_programs_with_little_left_ask_for_much() -> None:
    """Ten calls of 10 wait before it, ten of 40 come whose programs have the least left: 100 / (1 - x) + C + w*."""
    long, short = program(rest=1000.0, service=1e6), program()
    order, passed = OutOfTurn(0.5, 1.0), 0.0
    queue = queue_by(order, *(call(row, long) for row in range(10)), call(10, None, 900.0))
    fill(queue, *(call(row, short, 40.0) for row in range(11, 21)))
    while (one := next(iter(queue.ranked(0.0)))).row_id != 10:
        queue.serve(one)
        one.state, one.generated = State.FINISHED, 40 if one.row_id > 10 else 10
        passed += one.generated
    assert 100.0 < passed <= 100.0 / (1 - 0.5) + order._credit.most + 40.0


def test_a_jump_is_paid_by_the_calls_own_work() -> None:
    """20 more are expected of its program."""
    order = OutOfTurn(0.5, 4.0)
    queue = queue_by(order, call(0, None, 100.0), call(1, program(rest=20.0), 10.0))
    earn(queue, 12.0)
    before = order._credit.amount
    serve(queue, 1)
    assert before - order._credit.amount == pytest.approx(10.0)


@pytest.mark.parametrize("name", ["program-fcfs", "plas", "justitia", "thunder", "lengthwise"])
def test_every_order_serves_all_whatever_leaves(name: str) -> None:
    draw, served = random.Random(0), set()
    programs = [program(arrival=-float(one), service=one, rest=one, tokens=one) for one in range(9)]
    calls = [call(row, draw.choice([None, *programs]), draw.uniform(1, 9)) for row in range(60)]
    queue = queue_named(name, *calls)
    for one in calls[::3]:
        queue.discard(one)
    while queue:
        served.add(one := next(iter(queue.ranked(0.0))))
        queue.serve(one)
    assert served == set(calls) - set(calls[::3])
