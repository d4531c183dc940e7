"""What is expected of a program by those of its kind."""

import random

import pytest

from scheduler.programs.program import Kind, Program


def run(kind: Kind, turns: int, now: float, gap: float = 0.5, work: float = 10.0) -> float:
    program = Program("", kind, now)
    for _ in range(turns):
        program.begin(now)
        program.end(work, 100, now + 1.0)
        now += 1.0 + gap
    return now


def test_a_first_program_expects_nothing_and_later_ones_what_others_of_the_kind_did() -> None:
    kind, now = Kind(), 0.0
    new = Program("", kind, 0.0)
    new.begin(0.0)
    assert (kind.turns_left(1), new.rest) == (0.0, 0.0)
    for _ in range(200):
        now = run(kind, 8, now) + 10.0
    kind.settle(now)
    assert kind.turns_left(1) == pytest.approx(7.0, rel=0.05)
    assert kind.turns_left(8) == pytest.approx(0.0, abs=0.05)
    assert new.rest == pytest.approx(70.0, rel=0.05)


def test_what_is_expected_of_turns_is_calibrated_where_runs_end_by_chance() -> None:
    """With one run in ten ending at each turn nine more follow, whatever was had."""
    draw, kind, now = random.Random(0), Kind(), 0.0
    for _ in range(2000):
        turns = 1
        while draw.random() > 0.1:
            turns += 1
        now = run(kind, turns, now) + 10.0
    kind.settle(now)
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
