"""Promises: calibrated in groups by the answers that came, those that are overdue, and those that order rescued."""

import random
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from scheduler.length.learning import ROUNDING, survival
from scheduler.request import COVERAGE, Request, State
from scheduler.wait_estimate import calibration as module
from scheduler.wait_estimate.calibration import FEWEST, FEWEST_SCORES, RECENT, UNKNOWN, Calibration, Score
from scheduler.wait_estimate.completion import Expected, Group
from tests.scheduler.fakes import request

TOLD = Expected(0.0, 0, 0.0, 1.0, 2.0, 0.5, own_spread=log(1.3), high=4.0, group=(0, 1), waits=True, answers=RECENT)


def ended(seconds: float, told: Expected = TOLD, *, assigned: float | None = None, row_id: int = 0) -> Request:
    """Started as late as its own second allows, unless said otherwise."""
    one = request(row_id)
    one.state, one.expected, one.generated = State.FINISHED, told, 10
    one.times.assigned = told.at + max(0.0, seconds - told.own) if assigned is None else assigned
    one.times.end = told.at + seconds
    return one


def teach(calibration: Calibration, *answers: Request) -> None:
    for one in answers:
        assert one.times.end is not None
        calibration.add(one, one.times.end)


def taught(*answers: Request) -> Calibration:
    teach(calibration := Calibration(keeps=False), *answers)
    return calibration


def scores(calibration: Calibration, group: Group | None = (0, 1), now: float = 0.0) -> tuple[float, float, float]:
    return calibration.find_scores(group, now, COVERAGE)


def test_estimates_are_taken_as_they_come_until_there_are_scores() -> None:
    calibration = taught(*[ended(20.0)] * (FEWEST - 1))
    assert scores(calibration) == UNKNOWN and calibration.find_group(10, 0.5) is None
    teach(calibration, *[ended(20.0)] * (FEWEST_SCORES - FEWEST))
    assert scores(calibration) == UNKNOWN and calibration.find_group(10, 0.5) is not None
    teach(calibration, ended(20.0))
    assert scores(calibration) == pytest.approx([log(10) / 0.5] * 3)


def test_an_estimate_from_before_anything_was_known_says_nothing_of_later_ones() -> None:
    """A burst on a new server was expected four times too early: until 256 more had ended, all was expected later, and
    the ends of the intervals were a million times apart."""
    assert scores(taught(*[ended(8.0, replace(TOLD, group=None))] * 200)) == UNKNOWN


def test_promises_of_when_much_less_was_known_count_no_more() -> None:
    """Those of a new server's first answers kept all others ten times too far off, until 256 were scored."""
    calibration, few = Calibration(keeps=False), replace(TOLD, answers=FEWEST)
    teach(calibration, *[ended(200.0, few)] * (4 * FEWEST))
    assert scores(calibration) == pytest.approx([log(100) / 0.5] * 3)
    teach(calibration, *[ended(2.0, replace(TOLD, answers=4 * FEWEST))] * FEWEST_SCORES)
    assert scores(calibration) == pytest.approx([0.0] * 3)
    teach(calibration, *[ended(200.0, few)] * FEWEST)
    assert scores(calibration) == pytest.approx([0.0] * 3)


def test_groups_are_told_apart_once_they_have_scores_and_else_judged_together() -> None:
    calibration = taught(*[ended(2.0)] * 100, *[ended(8.0, replace(TOLD, group=(3, 1)))] * FEWEST_SCORES)
    assert scores(calibration)[2] == pytest.approx(0.0)
    assert scores(calibration, (3, 1))[2] == pytest.approx(log(4) / 0.5)
    assert scores(calibration, (2, 1))[1:] == pytest.approx((0.0, log(4) / 0.5))


def test_single_requests_are_no_evidence_of_a_burst_s() -> None:
    """After 54 single answers none of a burst's 20 kept a promise: those beside others slow each other down."""
    calibration, alone = Calibration(keeps=False), replace(TOLD, group=(module.ALONE, 1), waits=False)
    teach(calibration, *[ended(2.0, alone)] * RECENT)
    assert scores(calibration, (module.ALONE, 1))[2] == pytest.approx(0.0)
    assert scores(calibration, (module.NO_WAIT, 1)) == scores(calibration) == UNKNOWN
    teach(calibration, *[ended(8.0, replace(TOLD, group=(module.NO_WAIT, 1), waits=False))] * FEWEST_SCORES)
    assert scores(calibration, (module.ALONE, 1))[2] == pytest.approx(0.0)
    assert scores(calibration, (module.ALONE, 2)) == UNKNOWN, "nor a burst of those that come to an idle server"


GROUPS = [(4, -1.0, (-1, 0)), (5, 0.0, (0, 0)), (20, 0.6, (2, 1)), (21, 1.0, (3, 2))]


@pytest.mark.parametrize(("length", "ahead", "group"), GROUPS)
def test_a_group_is_a_quarter_of_the_queue_and_a_class_of_lengths(length: float, ahead: float, group: Group) -> None:
    assert taught(*[ended(2.0)] * FEWEST).find_group(length, ahead) == group


def test_the_spread_is_that_of_speeds_and_of_the_own_length_and_the_wait_by_their_shares() -> None:
    spreads = [module.spread_of(*seconds, 1.0, 0.0) - module.LEAST_SPREAD for seconds in ((2, 2), (2, 0), (4, 2))]
    assert spreads == pytest.approx([0.5, module.WAIT_SPREAD, (0.5**2 + module.WAIT_SPREAD**2) ** 0.5 / 2])


def test_before_any_score_a_promise_allows_for_the_longest_likely_answer_and_not_for_its_square() -> None:
    """12 tokens, or 114, were promised for when 1,000 would have been made."""
    known, unsure = (UNKNOWN[2] * module.spread_of(2.0, 2.0, log(ratio), 0.0) for ratio in (1.0, 9.5))
    assert exp(unsure - known) == pytest.approx(9.5)


def test_answers_of_known_lengths_by_a_slower_machine_do_not_put_those_of_unknown_ones_off_a_hundredfold() -> None:
    known, unsure = (module.spread_of(1.0, 1.0, log(ratio), 0.0) for ratio in (1.0, 9.5))
    assert exp(scores(taught(*[ended(1.7, replace(TOLD, point=1.0, spread=known))] * FEWEST_SCORES))[2] * unsure) < 20


def test_before_any_score_a_promise_counts_all_seconds_that_others_may_take() -> None:
    alone, beside = (2.0 * exp(UNKNOWN[2] * module.spread_of(2.0, 2.0, 1.0, others)) for others in (0.0, 6.0))
    assert beside == pytest.approx(4 * alone)


@pytest.mark.parametrize(("count", "ranks"), [(99, [5, 50, 95]), (256, [13, 129, 245]), (10, [1, 6, 10])])
def test_a_quantile_counts_the_next_score_too(count: int, ranks: list[int]) -> None:
    assert module.find_quantiles([Score(one) for one in range(1, count + 1)], (0.05, 0.5, 0.95)) == ranks


def test_what_was_cut_counts_as_those_that_went_on() -> None:
    """By hand: of 20, the next included, 16 go beyond 4; each of the 6 that are not cut stands for 16 / 6 of them."""
    scores = [Score(one) for one in (1, 2, 3, 4)] + [Score(5, cut=True)] * 10 + [Score(one) for one in range(6, 11)]
    assert module.find_quantiles(scores, (0.05, 0.2, 0.33, 0.6)) == [1, 4, 6, 8]
    assert module.find_quantiles([Score(1), Score(2, cut=True)], (0.5, 0.9)) == [2, 2], "no better is known"


def test_steps_between_cuts_find_what_all_shares_in_a_row_do() -> None:
    draws = random.Random(0)
    for count in range(1, 60):
        scores = sorted(Score(draws.randrange(20), draws.random() < count / 60) for _ in range(count))
        ties = draws.random(), 0.05, 0.5, 1 / (count + 1), count / (count + 1)
        shares = sorted(draws.sample(ties, 3))
        values, cut, _ = np.array(scores).T
        ascending, left = survival(values, cut > 0, unseen=1)
        places = np.searchsorted(-left, np.array(shares) - 1 - ROUNDING)
        assert module.find_quantiles(scores, shares) == ascending[np.minimum(places, count - 1)].tolist()


def test_clients_that_leave_before_their_answers_end_bring_no_promise_nearer() -> None:
    """Answers of 40 s were never seen where clients leave after 10, and the promise was what those of 2 s took."""
    calibration = Calibration(keeps=False)
    for _ in range(40):
        teach(calibration, *[ended(2.0)] * 3)
        gone = ended(10.0)
        gone.state = State.CANCELLED
        calibration.add(gone, 10.0, cut=True)
    assert scores(calibration)[2] == pytest.approx(log(5) / 0.5) and scores(calibration)[1] == 0.0


def test_what_limits_end_is_calibrated_apart_from_what_ends_by_itself() -> None:
    """Answers to calls with a small `max_tokens` end as told; that says nothing of those that may go on."""
    calibration = taught(*[ended(2.0, replace(TOLD, group=(0, module.LIMITED)))] * 200)
    assert calibration.find_group(10, 0.1, limited=True) == (0, module.LIMITED)
    assert scores(calibration, (2, module.LIMITED)) == (0.0, 0.0, 0.0)
    assert scores(calibration) == scores(calibration, None) == UNKNOWN


def test_a_promise_that_is_withdrawn_counts_for_nothing() -> None:
    calibration = taught(*[ended(20.0)] * FEWEST_SCORES)
    refused = request(1)
    refused.expected = TOLD
    calibration.promise(refused)
    before, refused.expected = scores(calibration), None
    calibration.add(refused, 1e3, cut=True)
    assert scores(calibration, now=1e6) == before


def test_a_promise_that_is_overdue_counts_before_its_answer_comes_and_once_after() -> None:
    """Feedback came a queue's length late: of a machine that slows down, what is short is told first."""
    calibration = taught(*[ended(2.0)] * 60)
    late = [ended(40.0, row_id=row_id) for row_id in range(20)]
    for one in late:
        one.state = State.WAITING
        calibration.promise(one)
    assert scores(calibration, now=4.0)[2] == pytest.approx(0.0)
    assert scores(calibration, now=20.0)[2] == pytest.approx(log(10) / 0.5)
    for one in late:
        one.state = State.CANCELLED
    assert scores(calibration, now=30.0)[2] == pytest.approx(0.0)


def test_an_answer_that_was_served_only_since_it_was_due_counts_as_longer_than_it_took() -> None:
    """Else the promises that order keeps are the evidence for nearer ones, which it must keep too."""
    calibration, free = Calibration(keeps=True), Calibration(keeps=False)
    for one in (calibration, free):
        teach(one, *[ended(3.5, assigned=TOLD.due)] * FEWEST_SCORES, *[ended(3.9, assigned=0.0)] * FEWEST_SCORES)
    assert scores(free)[0] == pytest.approx(TOLD.score(3.5))
    assert scores(calibration)[0] == pytest.approx(TOLD.score(3.9))
    for told, assigned in ((replace(TOLD, waits=False), TOLD.due), (TOLD, TOLD.due - 0.1)):
        teach(calibration, *[ended(3.5, told, assigned=assigned), ended(3.9, assigned=0.0)] * RECENT)
        assert scores(calibration)[0] == pytest.approx(TOLD.score(3.5)), "a slot was free, or it was not due yet"


def test_a_promise_that_needs_to_go_first_is_due_at_once() -> None:
    assert TOLD.due == pytest.approx(TOLD.by - 1.3 * TOLD.own) and replace(TOLD, first=True).due == TOLD.at


def test_a_bias_that_lasts_is_corrected_and_the_promise_covers_what_it_says() -> None:
    rng, calibration, kept = random.Random(3), taught(*[ended(2.0, replace(TOLD, group=None))] * FEWEST), []
    for number in range(1500):
        point, spread = rng.uniform(1, 50), rng.uniform(0.3, 2.0)
        seconds = 2 * point * exp(rng.gauss(0, 0.5) * spread)
        low, middle, high = scores(calibration)
        if number >= RECENT:
            kept.append((point * exp(spread * low) <= seconds, seconds <= point * exp(spread * high)))
        teach(calibration, ended(seconds, replace(TOLD, point=point, spread=spread)))
    above, below = (sum(each) / len(kept) for each in zip(*kept, strict=True))
    assert above == pytest.approx(0.95, abs=0.02) and below == pytest.approx(0.95, abs=0.02)
