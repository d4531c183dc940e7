"""What is expected of a program by those of its kind."""

import math
import random
from collections.abc import Iterable
from itertools import count, product

import pytest

from scheduler.programs.program import RECENT, Kind, Program


def run(kind: Kind, turns: int, now: float) -> float:
    program = Program("", kind, now)
    for _ in range(turns):
        program.begin(now)
        program.end(10.0, 100, now + 1.0)
        now += 1.5
    return now


def known(lengths: Iterable[int], kind: Kind | None = None) -> Kind:
    """A kind of which runs of so many turns came and ended, one after another."""
    kind, now = kind or Kind(), 0.0
    for turns in lengths:
        now = run(kind, turns, now) + 10.0
    kind.settle(now)
    return kind


def by_chance(draw: random.Random) -> int:
    """Turns, of which one in ten is the last."""
    return 1 + next(turns for turns in count() if draw.random() <= 0.1)


def test_a_first_program_expects_nothing_and_later_ones_what_others_of_the_kind_did() -> None:
    for kind, turns, rest in ((Kind(), 0.0, 0.0), (known([8] * 200), 7.0, 70.0)):
        new = Program("", kind, 0.0)
        new.begin(0.0)
        assert (kind.turns_left(1), new.rest) == pytest.approx((turns, rest), rel=0.05)
        assert kind.turns_left(8) == pytest.approx(0.0, abs=0.05)


def test_the_furthest_program_is_not_taken_for_nearly_done_nor_one_before_a_limit_for_half_done() -> None:
    """Turns that none had reached counted as none to come, and all from 32 to 63 alike."""
    kind = Kind()
    begun = [Program("", kind, 0.0) for _ in range(8)]
    for turn, one in product(range(64), begun):
        one.begin(turn + 0.1)
        one.end(10.0, 100, turn + 1.0)
    assert 10.0 < kind.turns_left(63) < 40.0
    known([60] * 200, kind)
    assert kind.turns_left(59) < 4.0 and kind.turns_left(30) == pytest.approx(30.0, rel=0.1)


def test_what_is_expected_of_turns_is_calibrated_where_runs_end_by_chance() -> None:
    """With one run in ten ending at each turn nine more follow, whatever was had."""
    draw = random.Random(0)
    kind = known(by_chance(draw) for _ in range(2000))
    assert [kind.turns_left(turns) for turns in (1, 4, 8)] == pytest.approx([9.0] * 3, rel=0.12)


def test_gaps_are_log_normal_and_end_a_program_that_stays_away() -> None:
    draw, kind = random.Random(0), Kind()
    for _ in range(500):
        kind.note_gap(3, draw.lognormvariate(0.0, 1.0))
    assert (kind.gap, kind.variance) == pytest.approx((0.0, 1.0), abs=0.1)
    assert kind.patience == pytest.approx(10.3, rel=0.15)


def test_choices_of_a_call_are_one_turn_and_calls_at_once_one_pause() -> None:
    kind = Kind()
    program = Program("", kind, 0.0)
    program.begin(0.0)
    program.begin(0.0)
    assert (program.turns, program.open) == (1, 2)
    program.end(5.0, 10, 1.0)
    program.begin(1.5)
    assert (program.turns, program.open) == (2, 2) and sum(kind.went_on) == 0
    program.end(5.0, 10, 2.0)
    program.end(5.0, 10, 2.0)
    program.begin(4.0)
    assert sum(kind.went_on) == 1 and program.service == 15.0


def test_a_subagents_work_and_rest_are_its_parents_too_and_its_turns_its_own() -> None:
    main, sub = Kind(), Kind()
    now = run(sub, 3, run(main, 5, 0.0) + 50.0) + 50.0
    parent = Program("", main, now)
    child = Program("", sub, now, parent=parent)
    parent.begin(now)
    parent.end(10.0, 100, now + 1.0)
    child.begin(now + 1.5)
    assert parent.rest > 0 and child.rest == pytest.approx(sub.turns_left(1) * 10.0 + parent.rest)
    child.end(30.0, 100, now + 90.0)
    assert (parent.service, parent.turns, child.service) == (40.0, 1, 30.0)


def test_a_program_that_waits_for_its_subagent_has_not_ended() -> None:
    kind = Kind()
    parent, before = Program("", kind, 0.0), sum(kind.ended)
    parent.begin(0.0)
    parent.end(10.0, 100, 1.0)
    child = Program("", Kind(), 1.0, parent=parent)
    child.begin(1.5)
    kind.settle(500.0)
    assert sum(kind.ended) == before
    child.end(10.0, 100, 501.0)
    parent.begin(501.5)
    assert kind.gap == pytest.approx(math.log(0.5)) and sum(kind.went_on) == 1


def test_the_end_of_a_program_is_estimated_once_enough_of_its_kind_ended_and_kept_by_as_many() -> None:
    """Turns of one second and pauses of half a second; one run in ten ends at each turn."""
    draw, kind, now, kept = random.Random(0), Kind(), 0.0, list[bool]()
    assert Program("", kind, 0.0).end_within(0.95) is None
    for _ in range(2000):
        program, within = Program("", kind, now), list[tuple[float, float]]()
        for _ in range(by_chance(draw)):
            program.begin(now)
            if (told := program.end_within(0.9)) is not None:
                within.append((now, told))
            program.end(10.0, 100, now + 1.0)
            now += 1.5
        kept += [now - 0.5 <= at + told for at, told in within]
        now += 10.0
    assert len(kept) > 10_000 and 0.85 < sum(kept) / len(kept) < 0.95
    assert kind.errors == sorted(kind.errors) and len(kind.errors) == RECENT
