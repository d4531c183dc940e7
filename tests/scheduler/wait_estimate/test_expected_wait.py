"""How long the queue will take, on a clock and executors that the test plays."""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from math import exp
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from scheduler.batching.batcher import BatchLimits
from scheduler.length.prediction import LengthDistribution
from scheduler.remaining_length import remaining_length
from scheduler.request import Request, Unpromised
from scheduler.submission import Known
from scheduler.wait_estimate.calibration import ALONE, FEWEST, LEAST_SPREAD, NO_WAIT, UNKNOWN, Calibration
from scheduler.wait_estimate.expected_wait import ExpectedWait
from scheduler.wait_estimate.places import FRESH
from scheduler.wait_estimate.speed import Holding, Made, Speed
from scheduler.waiting.prices import Prices
from scheduler.waiting.sorted_requests import QueueAhead
from tests.scheduler.fakes import Stage, port, request, token

STOP = FinishReason.STOP


class Queue(Stage):
    """One executor whose rows make a token a second each, and what waits for it."""

    def __init__(self, rows: int, strategy: str = "baton-pd") -> None:
        limits = BatchLimits(group_tokens=1000, prefill_ahead=0)
        super().__init__(port(rows=rows, capacity=100_000, context=10_000), strategy=strategy, limits=limits)
        self.left, self.waits = Counter[Request](), self.dispatcher.waits

    def submit(
        self, length: int = 4, *, predicted: float | None = None, by: float | None = None, **known: Any
    ) -> Request:
        request = super().submit(most=1000, predicted_length=predicted, promised=by, **known)
        self.left[request] = length
        return request

    def run(self, seconds: int = 1) -> None:
        """In each of which every row makes a token."""
        for _ in range(seconds):
            self.dispatcher.dispatch()
            self.left.subtract(held := self.dispatcher.table.held)
            tokens = (token(one.row_id, 5, end=None if self.left[one] else STOP) for one in held)
            self.report(*tokens, now=self.clock.time + 1.0)
            self.dispatcher.dispatch()


def test_the_wait_is_until_the_slots_end_that_those_ahead_need() -> None:
    """Two rows with 3 tokens left each; ahead of a newcomer are one of 6 and one of 2, which ends after 5 s."""
    queue = Queue(rows=2)
    running = [queue.submit(15, predicted=15), queue.submit(15, predicted=15)]
    first, second = queue.submit(6, predicted=6), queue.submit(2, predicted=2)
    queue.run(12)
    assert [queue.waits.place(one) for one in (first, second, *running)] == [0, 1, None, None]
    assert [queue.waits.wait(one) for one in (first, second, running[0])] == [pytest.approx(3), pytest.approx(3), None]
    assert queue.waits.retry_after() == pytest.approx(3 + 2)


def test_what_runs_is_looked_at_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that asked for its wait looked at all rows: 1,000 of them, at 1,000 rows, took two seconds."""
    queue, asked = Queue(rows=50), list[Request]()
    requests = [queue.submit(9, predicted=9) for _ in range(70)]
    queue.run(3)

    def counted(request: Request, typical: float | None) -> float:
        asked.append(request)
        return remaining_length(request, typical)

    monkeypatch.setattr("scheduler.remaining_length.remaining_length", counted)
    first = queue.waits.wait(requests[-1])
    assert [queue.waits.wait(request) for request in requests[50:]][-1] == first
    assert len(asked) == 50
    queue.run()
    later = queue.waits.wait(requests[-1])
    assert first is not None and later is not None and later < first and len(asked) > 50


def test_one_who_leaves_has_no_place_and_those_behind_move_up() -> None:
    queue = Queue(rows=1)
    queue.submit(50)
    queue.run()
    one, other = queue.submit(5), queue.submit(5)
    assert queue.waits.place(other) == 1
    queue.dispatcher.cancel(one)
    queue.clock.time += FRESH
    assert (queue.waits.place(one), queue.waits.place(other)) == (None, 0)


def test_while_slots_are_free_nobody_waits_though_rows_run() -> None:
    queue = Queue(rows=3)
    queue.submit(100, predicted=100)
    queue.run(40)
    waits = [queue.waits.wait(one) for one in [queue.submit(100, predicted=100) for _ in range(3)]]
    assert waits[:2] == [0.0, 0.0]
    assert waits[2] is not None and waits[2] > 10


def test_answers_of_unknown_length_take_as_long_as_those_that_ended_and_nobody_knows_before() -> None:
    queue = Queue(rows=1)
    queue.submit(30)
    assert queue.waits.retry_after() == 1.0
    queue.run(20)
    waiting = [queue.submit(30), queue.submit(30)]
    assert queue.waits.place(waiting[1]) == 1
    assert queue.waits.wait(waiting[1]) is None
    queue.run(10)
    assert queue.waits.wait(waiting[1]) == pytest.approx(30, rel=0.02)


def test_one_that_comes_alone_is_judged_apart_from_those_of_a_burst() -> None:
    """After a burst's first ones, which others slow down, singles were promised many times too far."""
    queue = Queue(rows=2)
    for _ in range(FEWEST):
        queue.submit(1)
        queue.run()
    groups = [queue.submit(3).expected for _ in range(3)]
    assert [one and one.group and one.group[0] for one in groups] == [ALONE, NO_WAIT, 3]


def measured() -> Queue:
    """Two rows that have served for twelve seconds."""
    queue = Queue(rows=2)
    for length in (15, 15, 6):
        queue.submit(length, predicted=length)
    queue.run(12)
    return queue


def test_no_score_takes_a_promise_far_beyond_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stall of its backend a gateway promised the year 2028, then no date at all."""
    monkeypatch.setattr(Calibration, "find_scores", lambda *_: (-1e9, 0.0, 1e9))
    expected = measured().waits.expect(request(9))
    assert expected.low == 0.0 and expected.point < expected.high < 150 * expected.point


def test_a_promise_allows_for_what_the_mean_of_few_lengths_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of one long queue all have the same error: of 2,000 at twice the capacity the last fifth missed."""
    monkeypatch.setattr(Calibration, "find_scores", lambda *_: (0.0, 0.0, 0.0))
    queue = measured()
    for row_id in range(9):
        queue.submit(row_id + 2)
    told = queue.waits.expect(request(9))
    error = queue.waits._speed.sum_error(told.place)
    assert told.wait and told.high == pytest.approx(told.own + told.wait * (1 + NormalDist().inv_cdf(0.95) * error))


def test_no_answer_is_promised_far_beyond_what_its_limit_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new server promised 45 s for at most 200 tokens that take 6."""
    monkeypatch.setattr(Calibration, "find_scores", lambda *_: (-1.0, 0.0, 3.0))
    queue = measured()
    short, sure = request(9, max_tokens=20), request(9, max_tokens=20)
    short.distribution = LengthDistribution.of(np.array([2, 3, 500]), np.array([0.4, 0.4, 0.2]))
    sure.distribution = LengthDistribution.certain(20)
    limited, longest = (queue.waits.expect(one) for one in (short, sure))
    assert limited.point < longest.point / 2 and limited.high == pytest.approx(longest.high)


def test_beside_others_a_promise_counts_every_slot_as_taken_and_alone_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a new server's first burst 17 of 20 were kept, of long prompts none of 40: each was promised what the rows
    of its moment cost."""
    reads = Prices(0.0, 10.0, 1.0, 0.0, fixed_seconds=1.0)
    for cost, prices in ((1.0, replace(reads, entry=0.0)), (0.0, reads)):  # of a row, in steps, or of a prompt
        monkeypatch.setattr(ExpectedWait, "_iteration_seconds", lambda _, rows, cells, cost=cost: 1 + cost * rows)
        queue = Queue(rows=9)
        monkeypatch.setattr(queue.waits, "_prices", partial(replace, prices))
        factors = []
        for _ in range(2):
            told = queue.waits.expect(request(9))
            factors.append(told.high / told.median)
            queue.submit(100, predicted=100)
            queue.run()
        assert factors[0] == pytest.approx(exp(UNKNOWN[2] * LEAST_SPREAD))
        taken = 7 * 8 * cost if cost else 7 * reads.entry  # of 8 tokens, or prompts
        assert factors[1] / factors[0] == pytest.approx(1 + taken / told.median)


def idle() -> Queue:
    """Its speed is measured."""
    queue = Queue(rows=9)
    for _ in range(2):
        queue.submit(20, predicted=20)
    queue.run(25)
    return queue


def test_the_choices_of_a_call_to_an_idle_server_are_no_burst() -> None:
    """Of four choices the last were promised ends six times as far as they took."""
    told = idle().waits.expect(request(9), QueueAhead(place=3, tokens=24.0))
    assert told.high / told.median == pytest.approx(exp(UNKNOWN[2] * LEAST_SPREAD))


def test_choices_of_a_call_are_promised_for_its_end_of_which_one_scores() -> None:
    """Of 64 the first were promised ends without the 63 beside them: they counted as broken, and taught others."""
    queue = Queue(rows=2)
    for _ in range(FEWEST):
        queue.submit(10, predicted=10)
        queue.run(12)
    calls = [(range(4), SamplingParams(max_tokens=1000), Known(predicted_length=10.0))] * 5
    told = [one.expected for one in queue.dispatcher.submit_all(calls)]
    assert all(one is not None for one in told)
    assert len({one.by for one in told if one}) == 1
    assert [one.group is not None for one in told if one] == [False] * 4 + [True]


def test_a_few_answers_do_not_tell_how_long_another_can_be() -> None:
    """After one of 8 tokens, one of 434 was promised for when 53 would have been made."""
    queue, highs = Queue(rows=9), []
    for answers in (1, 18, 19):
        asked = replace(request(9), sampling=SamplingParams(max_tokens=1000))
        asked.distribution = replace(LengthDistribution.certain(8), answers=answers)
        highs.append(queue.waits._lengths(asked)[1])
    assert highs == [1000, 1000, 8]


def test_an_answer_is_promised_by_what_its_prediction_turned_out_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibration, "find_scores", lambda *_: (-1.0, 0.0, 3.0))
    queue = measured()
    one, longer = request(9, max_tokens=100), request(9, max_tokens=100)
    one.distribution = longer.distribution = LengthDistribution.certain(10)
    longer.correction = 4.0
    assert queue.waits.expect(longer).own == pytest.approx(4 * queue.waits.expect(one).own, rel=0.2)


def test_an_idle_server_expects_no_pauses_for_prompts_of_others() -> None:
    queue = idle()
    waits = queue.waits
    own = waits.expect(request(9)).own
    waits._speed._reading = 0.8 * waits._speed._elapsed
    assert waits.expect(request(9)).own == own
    queue.submit(100, predicted=100)
    queue.run()
    assert waits.expect(request(9)).own > 3 * own


def test_beside_others_a_promise_without_prices_counts_each_token_twice() -> None:
    """Of a new gateway's first 100 calls under load, 69 kept promises by what a call had taken alone."""
    queue = Queue(rows=9)
    factors = []
    for _ in range(2):
        queue.submit(100, predicted=100)
        queue.run(30)
        told = queue.waits.expect(request(9))
        factors.append(told.high / told.median)
        queue.waits._calibration._scores.clear()
    assert factors == pytest.approx([2 * exp(UNKNOWN[2] * LEAST_SPREAD)] * 2)


def crowded() -> Queue:
    """A row that has served for 45 seconds, and 8 requests that wait for it."""
    queue = Queue(rows=1, strategy="lengthwise")
    for _ in range(12):
        queue.submit(10, predicted=10)
    queue.run(45)
    return queue


def test_a_promise_is_given_where_credit_lets_it_go_first_and_the_time_offered_else_is_given() -> None:
    queue = crowded()
    now = queue.clock.time
    with pytest.raises(Unpromised) as refused:
        queue.submit(20, predicted=10, by=now + 1)
    call = (range(4), SamplingParams(max_tokens=1000), Known(predicted_length=10.0))
    in_turn = queue.dispatcher.admission.estimate_all([call])
    assert in_turn[0].expected and refused.value.by and now < refused.value.by < in_turn[0].expected.by
    asked = queue.submit(10, predicted=10, by=refused.value.by)
    assert asked.expected and asked.expected.by == pytest.approx(refused.value.by)
    queue.run(20)
    assert asked.times.end is not None and asked.keeps_promise(asked.times.end)


def test_a_promise_comes_no_nearer_than_the_place_in_line_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an arrival's credit would pay for was told, though others had spent it: 4 of 7 ended after it."""
    promised = []
    for place in (0, 8):
        queue, ahead = crowded(), QueueAhead(place, 10.0 * place)
        monkeypatch.setattr(queue.waits._waiting, "ahead", lambda *_: QueueAhead())
        asked = queue.submit(5, predicted=5, by=queue.clock.time + 100_000)
        monkeypatch.setattr(queue.waits._places, "ahead", lambda *_, ahead=ahead: ahead)
        assert queue.waits.tell_again(asked) and (told := asked.expected) is not None
        assert told.low <= told.median <= told.high
        promised.append(told.high)
    assert promised[1] > promised[0] + 80, "eight times ten seconds wait before it"


@pytest.mark.parametrize("predicted", [30.0, None])
def test_the_load_of_a_node_is_the_work_of_all_that_it_has(predicted: float | None) -> None:
    queue = Queue(rows=2)
    waits = queue.waits
    waits._prices = lambda: Prices(prompt=0.5, entry=2.0, token=0.9, cell=0.01, square=0.001, unit=0.1)
    done = request(4)
    done.generated = 30
    waits.ended(done, 0.0)  # others are taken to be as long
    waits.made(30, 30, 0, 0)
    for _ in range(9):
        queue.submit(30, predicted=predicted)
    queue.dispatcher.dispatch()
    held = [one for worker in queue.dispatcher.workers for one in worker.requests.values()]
    left = {one: remaining_length(one, waits._speed.mean_length) for one in [*queue.dispatcher.waiting, *held]}
    works = [waits._prices().work_left(*one) for one in left.items()]
    assert waits.load().requests == len(works) == 9
    assert waits.load().work == pytest.approx(0.1 * sum(works))


def test_an_idle_hour_changes_nothing() -> None:
    pace = Speed()
    pace.observe(Holding(2, 2), 0.0)
    pace.observe(Holding(), 5.0, Made(20, 20))
    pace.observe(Holding(2, 2), 3605.0)
    assert pace.seconds_per_token(2) == 0.5


FADING = [(1, 1, 4, 500, 1e-3), pytest.param(4, 12, 4, 60, 0.25, id="three times slower within a minute")]


@pytest.mark.parametrize(("rows", "before", "later", "seconds", "off"), FADING)
def test_what_lies_back_fades(rows: int, before: int, later: int, seconds: int, off: float) -> None:
    """Tokens that were made a second for long, and then some seconds of another speed."""
    pace = Speed()
    pace.observe(Holding(rows, rows), 0.0)
    for second, made in enumerate([before] * max(300, seconds) + [later] * seconds, start=1):
        pace.observe(Holding(rows, rows), float(second), Made(made, made))
    assert pace.seconds_per_token(rows) == pytest.approx(rows / later, rel=off)


def test_rows_are_faster_among_few_as_prices_say_whatever_was_measured_how_often() -> None:
    """Measured under load alone, a single row would seem so slow that none would ever be let in to show otherwise."""
    pace = Speed(lambda rows, _: 0.07 + 0.01 * rows)
    for rows, tokens in ((1, 20), (9, 90)):  # half a second and a second a token
        pace.observe(Holding(rows, rows), 0.0)
        pace.observe(Holding(), 10.0, Made(tokens, tokens))
    assert [pace.seconds_per_token(rows) for rows in (1, 5, 9, 17)] == pytest.approx([0.5, 0.75, 1.0, 1.5])
    assert [pace.seconds_per_step(rows) for rows in (1, 5, 9)] == pytest.approx([0.5, 0.75, 1.0])


def test_before_anything_was_measured_prices_tell_the_speed() -> None:
    """A new server that only promised calls came to refused them all: nothing was ever measured."""
    pace = Speed(lambda rows, _: 0.04 + 0.002 * rows)
    assert pace.seconds_per_token(1) == pace.seconds_per_step(1) == 0.042


def test_on_a_slower_machine_prompts_are_slower_too_and_none_of_it_counts_as_tokens() -> None:
    """Beside other programs, an idle server promised 4.5 s for 0.5 after a burst of long prompts."""
    paces = [Speed(lambda rows, cells: 0.1) for _ in range(2)]
    for pace, slower in zip(paces, (1, 3), strict=True):
        pace.observe(Holding(10, 10, 1000), 0.0)
        pace.observe(Holding(), slower * 4.0, Made(100, 100, reading=3.0, begun=6))
    assert paces[0].prompt_seconds == 0.5
    assert paces[1].prompt_seconds == pytest.approx(1.5)
    usual, slow = (pace._sums.decode_seconds / pace._sums.tokens for pace in paces)
    assert slow / usual == pytest.approx(3.0)


def test_prompts_that_held_up_rows_are_forgotten_by_the_clock_and_their_cells_count_for_none_but_them() -> None:
    """An idle server promised 3.5 s for 0.34 for 60 calls, since a burst of long prompts had made tokens slow."""
    pace = Speed(lambda rows, cells: 0.01 * rows * (1 if cells is None else cells / 100))
    pace.observe(Holding(), 0.0)
    pace.observe(Holding(10, 10, 4000), 300.0)
    pace.observe(Holding(10, 10, 4000), 320.0, Made(tokens=200, work=200, reading=12.0, begun=6))
    assert pace.prompt_seconds == pytest.approx(2.0)
    held_up = pace.seconds_per_token(10)
    assert held_up is not None and held_up > 0.13
    pace.observe(Holding(), 320.0)
    pace.observe(Holding(1, 1), 620.0)
    assert pace.seconds_per_token(10) == pytest.approx(0.1, rel=1e-3), "of those with 100 cells"


def test_the_first_token_of_a_long_prompt_is_no_measurement() -> None:
    pace = Speed()
    pace.observe(Holding(1, 0), 0.0)
    pace.observe(Holding(1, 1), 10.0, Made(0, 500.0))
    assert pace.seconds_per_token(1) is None and pace.seconds_per_step(1) is None


def test_a_token_counts_the_seconds_of_the_rows_that_generate_and_work_those_of_all() -> None:
    """Rows that were being read counted as if they generated, so that long prompts seemed to make tokens slow."""
    pace = Speed()
    pace.observe(Holding(8, 2), 0.0)
    pace.observe(Holding(), 10.0, Made(20, 100.0))
    assert (pace.seconds_per_token(8), pace.seconds_per_step(8)) == (1.0, 0.8)


def end(pace: Speed, *lengths: int, cut: bool = False) -> None:
    """Alone, one behind the other."""
    for length in lengths:
        pace.observe(Holding(), 0.0, Made(all_tokens=length))
        pace.ended(length, cut=cut)


def test_a_mean_length_counts_what_rows_make_that_outlive_the_first_to_end() -> None:
    """Of eight that began together, the first to end used to stand for all."""
    pace = Speed()
    pace.observe(Holding(), 0.0, Made(all_tokens=8 * 10))
    pace.ended(10)
    assert pace.mean_length == 80
    pace.observe(Holding(), 0.0, Made(all_tokens=7 * 10))
    assert pace.mean_length == 150
    for _ in range(7):
        pace.ended(20)
    assert pace.mean_length == 150 / 8


def test_an_answer_without_prediction_counts_as_the_mean_of_those_that_ended_and_never_more_than_it_may() -> None:
    pace = Speed()
    short = request()  # 8 tokens at most
    assert remaining_length(short, pace.mean_length) == 8
    end(pace, 4, 6, 8)
    assert remaining_length(short, pace.mean_length) == 6
    short.generated = 5
    assert remaining_length(short, pace.mean_length) == 3


def test_an_answer_of_unknown_length_is_expected_as_long_as_others_would_have_been_without_their_limits() -> None:
    """By the mean of what had been cut at 16 tokens a call with a limit of 1,000 was promised its answer for 48."""
    pace = Speed()
    end(pace, 100, 300)
    assert pace.uncut_length == pace.mean_length == 200
    end(pace, 16, 16, cut=True)
    assert pace.mean_length == 108 and pace.uncut_length == 432 / 2
    never = Speed()
    assert never.uncut_length is None
    end(never, 16, cut=True)
    assert remaining_length(request(0), never.uncut_length) == request(0).sampling.max_tokens


def test_a_sum_of_lengths_is_off_by_their_own_and_by_their_mean_s_error() -> None:
    pace = Speed()
    assert pace.sum_error(5) == 0.0
    end(pace, 100, 300)
    assert pace.sum_error(10) == pytest.approx(0.5 * (1 / 10 + 1 / 4) ** 0.5)


@pytest.mark.parametrize("predicts", [True, False])
@pytest.mark.parametrize("rows", [1, 8])
def test_expected_waits_come_true_on_the_average(rows: int, predicts: bool) -> None:
    """400 geometric lengths: without predictions a single wait may be far off, their mean is not."""
    rng = random.Random(7)
    queue = Queue(rows)
    requests = []
    for _ in range(400):
        length = 1 + int(rng.expovariate(1 / 20))
        requests.append(queue.submit(length, predicted=length if predicts else None))
    while sum(one.times.end is not None for one in requests) < 100:
        queue.run()
    asked = queue.clock.time
    waiting = [one for one in requests if queue.waits.place(one) is not None]
    expected = [queue.waits.wait(one) or 0.0 for one in waiting]
    while any(one.times.end is None for one in requests):
        queue.run()
    actual = [(one.times.started or 0.0) - asked for one in waiting]
    assert len(waiting) > 250
    assert sum(expected) == pytest.approx(sum(actual), rel=0.05 if predicts else 0.25)
