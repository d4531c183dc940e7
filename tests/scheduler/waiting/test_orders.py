"""Orders by work, as boost, feedback, fair sojourn and response ratio, by length, rank and program."""

import random
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from scheduler.assembly import ORDERS
from scheduler.batching.batcher import BatchLimits
from scheduler.length.prediction import LengthDistribution
from scheduler.options import Scheduling
from scheduler.programs.program import Program
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from scheduler.waiting import by_work as module
from scheduler.waiting.by_length import ByRank, gittins_rank, inflated_length, inflated_score
from scheduler.waiting.by_work import Boost, FairSojourn, ResponseRatio, boost, predicted_work
from scheduler.waiting.order import ByScore
from scheduler.waiting.out_of_turn import OutOfTurn
from scheduler.waiting.prices import Prices, device_prices
from scheduler.waiting.queue import RankedQueue
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import AGING, TOKENS, by_tokens, fill, first, predicted, program, queue_by, serve
from tests.scheduler.waiting.test_out_of_turn import earn, queue_of


def test_the_boost_is_that_of_the_paper() -> None:
    assert boost(2.0, 0.5) == pytest.approx(-log(1 - exp(-1.0)) / 0.5)
    assert boost(1000.0, 0.5) == pytest.approx(0.0, abs=1e-12)
    assert boost(0.0, 0.5) > 10 * boost(1.0, 0.5) > 0, "what costs nothing has a finite one"


@pytest.mark.parametrize(("gamma", "ranked"), [(1e-3, [1, 2, 0]), (0.1, [1, 0, 2]), (50.0, [0, 1, 2])])
def test_it_lies_between_shortest_job_first_and_first_come_first_served(gamma: float, ranked: list[int]) -> None:
    """With γ = 0.1, requests of 8, 1 and 6 seconds have boosts of 6, 23.5 and 8; the last came 3 s later."""
    requests = predicted(0, 8.0, arrival=0.0), predicted(1, 1.0, arrival=1.0), predicted(2, 6.0, arrival=3.0)
    assert first(queue_by(Boost(by_tokens, gamma, predicted_work), *requests), now=9.0) == ranked


def test_work_is_turned_into_seconds() -> None:
    one = predicted(0, 8.0, arrival=5.0)
    assert Boost(lambda: replace(TOKENS, unit=0.25), 0.1, predicted_work).key(one, 9.0)[1] == 5.0 - boost(2.0, 0.1)


@pytest.mark.parametrize(("generated", "work"), [(0, 16.0), (6, 16.0), (7, 32.0), (22, 32.0), (23, 64.0)])
def test_attained_work_grows_in_powers_of_two(generated: int, work: float) -> None:
    """A prompt of 4 tokens costs 2 + 2·4, a token 1."""
    prices = Prices(prompt=2.0, entry=2.0, token=1.0, cell=0.0)
    assert module.attained_work(request(length=4, generated=generated), prices) == work


PRICES = Prices(prompt=1.0, entry=0.0, token=1.0, cell=0.0)
"""A prompt's token costs 1, and so does a generated one."""


SUNK = [(1, 0, 0), (1, 1, 1), (1, 2, 2), (1, 6, 3), (8, 0, 3), (8, 1, 4), (8, 15, 4), (8, 16, 5), (5, 2, 3), (5, 3, 4)]


@pytest.mark.parametrize(("length", "generated", "level"), SUNK)
def test_a_request_joins_where_its_prompt_fits_and_then_sinks(length: int, generated: int, level: int) -> None:
    """With a prompt of 8 it joins at level 3, whose quantum of 8 that uses up; level 4 lets it have 16 more."""
    assert module.find_level(request(length=length, generated=generated), PRICES) == level


def test_levels_come_before_arrival() -> None:
    old, new = request(0, length=8, arrival=0.0), request(1, length=1, arrival=5.0)
    same = request(2, length=7, arrival=1.0)
    assert first(queue_by(ByScore(lambda one: module.find_level(one, PRICES)), old, new, same), now=6.0) == [1, 0, 2]


def test_a_late_one_passes_only_what_would_not_have_ended_by_then() -> None:
    """While 9 of work are taken, rows 1 and 2 and that share it and have had 3 each; so a newcomer of 5 ends after the
    one of 6, which has 3 left."""
    queue = queue_by(FairSojourn(), predicted(0, 9.0), predicted(1, 6.0), predicted(2, 20.0))
    assert first(queue) == [1, 0, 2], "of those that came together the shortest would end first"
    serve(queue, 0)
    fill(queue, predicted(3, 5.0))
    assert first(queue) == [1, 3, 2]
    fill(queue, predicted(4, 2.0))
    assert first(queue) == [4, 1, 3, 2]


def test_the_longest_wait_for_its_work_is_first() -> None:
    """10 s of work since 0 s against 2 s since 10 s: 1.2 against 1.0 at 12 s, 1.26 against 1.3 at 12.6 s."""
    queue = queue_by(ResponseRatio(TOKENS.work), predicted(0, 10.0, arrival=0.0), predicted(1, 2.0, arrival=10.0))
    assert first(queue, now=12.0) == [0, 1] and first(queue, now=12.6) == [1, 0]
    free = queue_by(ResponseRatio(lambda one: 0.0), predicted(0, 5.0), predicted(1, 3.0))
    assert first(free, now=9.0) == [0, 1], "what costs nothing is ranked too"


def test_by_the_prompt_alone() -> None:
    """Prompts of 10 and 2 tokens at 0 and 10 s: the second passes at 12.5 s. What is kept of a prompt is not read."""
    one, other = request(0, length=10, arrival=0.0), request(1, length=4, arrival=10.0, cached_prompt=2)
    queue = queue_by(ORDERS["hrrn-prompt"](BatchLimits(100, 1), device_prices), one, other)
    assert first(queue, now=12.4) == [0, 1] and first(queue, now=12.6) == [1, 0]


def likely(row_id: int, chances: dict[float, float], *, generated: int = 0) -> Request:
    """A request whose answer has one of these lengths, with its chance."""
    lengths, weights = np.array([*chances], np.float32), np.array([*chances.values()], np.float32)
    spread = LengthDistribution(lengths, weights)
    return predicted(row_id, spread.mean, arrival=0.0, distribution=spread, generated=generated)


def rank(request: Request) -> float:
    return gittins_rank(request, by_tokens())


def test_a_chance_of_a_short_answer_counts_and_once_it_is_gone_the_rest() -> None:
    """2 or 18 tokens: to try 2 costs 2 with a chance of a half, so 4 for an end; to the end it is 10."""
    chances = {2.0: 0.5, 18.0: 0.5}
    assert [rank(likely(0, chances, generated=generated)) for generated in range(3)] == [4.0, 2.0, 16.0]
    assert rank(likely(1, {10.0: 1.0})) == 10.0
    assert first(queue_by(ByScore(rank), likely(1, {5.0: 1.0}), likely(0, chances))) == [0, 1]


def test_without_a_distribution_it_is_the_work_that_is_left() -> None:
    outlived = likely(0, {2.0: 0.5, 4.0: 0.5}, generated=6)
    assert (rank(predicted(0, 7.0)), rank(outlived)) == (7.0, TOKENS.work(outlived))


def test_the_worst_tenth_counts_twice_what_was_generated_is_left_out_and_the_rest_is_bounded() -> None:
    """8 tokens, in a fifth of all cases 98: 26 + 0.3·98 = 55.4, more than 40 for certain, which is 52."""
    risky, certain = likely(0, {8.0: 0.8, 98.0: 0.2}), likely(1, {40.0: 1.0})
    begun = likely(0, {10.0: 0.5, 50.0: 0.25, 500.0: 0.25}, generated=20)
    lengths = [inflated_length(one) for one in (risky, certain, begun, predicted(1, 7.0))]
    assert lengths == pytest.approx([26 + 0.3 * 98, 1.3 * 40, (30 + 480) / 2 + 0.3 * 480, 1.3 * 7])
    assert first(queue_by(ByScore(inflated_score), risky, certain)) == [1, 0]


@pytest.mark.parametrize(("later", "ranked"), [(190.0, [1, 0]), (205.0, [0, 1])])
def test_a_wait_makes_up_for_length(later: float, ranked: list[int]) -> None:
    """Half the length is worth ln 2 / ln(1/0.9) times 30 s: 197 s."""
    assert 30 * log(2) / log(1 / 0.9) == pytest.approx(197.4, abs=0.1)
    queue = queue_by(ByScore(inflated_score), predicted(0, 20.0, arrival=0.0), predicted(1, 10.0, arrival=later))
    assert first(queue, now=later) == ranked


ORDER = ByRank(AGING)


def test_the_least_rank_is_first_whatever_has_been_generated() -> None:
    begun = predicted(0, 50.0, generated=30)  # 20 are left, which the shortest remainder would take first
    assert first(queue_by(ORDER, begun, predicted(1, 40.0), predicted(2, None)), now=3.0) == [1, 0, 2]


def test_what_has_been_idle_for_two_hundred_steps_goes_before_all_others_by_its_rank() -> None:
    queue = queue_by(ORDER, predicted(0, 90.0), predicted(1, 80.0), predicted(2, 5.0, arrival=150.0))
    assert (first(queue, now=199.0), first(queue, now=200.0)) == ([2, 1, 0], [0, 2, 1])
    assert first(queue, now=201.0) == [1, 0, 2]


def test_a_promotion_ends_once_the_request_is_given_to_an_executor() -> None:
    starved, short = predicted(0, 90.0, arrival=0.0), predicted(1, 5.0, arrival=190.0)
    assert ORDER.key(starved, 200.0) < ORDER.key(short, 200.0)
    starved.runs = 1
    assert ORDER.key(starved, 200.0) > ORDER.key(short, 200.0)
    assert ORDER.changes_at(starved) == (400.0,) and ORDER.key(starved, 400.0) > ORDER.key(short, 400.0)
    assert ORDER.key(starved, 400.0)[1] == 0


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
