"""Kaplan and Meier's estimate by hand and against the textbook's product, and what becomes of answers that were cut."""

from fractions import Fraction
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.length.learning import completed, median

Answers = list[tuple[int, bool]]


def arrays(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one for one, _ in answers], dtype=np.float32), np.array([cut for _, cut in answers], dtype=bool)


def share_beyond(answers: Answers, length: int) -> Fraction:
    """The share of answers that become longer, as the textbook has it: a factor for each length at which some end."""
    share = Fraction(1)
    for end in sorted({one for one, cut in answers if not cut and one <= length}):
        ended = sum(one == end and not cut for one, cut in answers)
        share *= 1 - Fraction(ended, sum(one >= end for one, _ in answers))
    return share


ANSWERS = st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40)


@given(ANSWERS)
def test_the_median_is_where_half_of_all_have_ended(answers: Answers) -> None:
    lengths = sorted({one for one, _ in answers})
    expected = next((one for one in lengths if share_beyond(answers, one) <= Fraction(1, 2)), None)
    assert median(*arrays(answers)) == expected


@given(st.lists(st.integers(1, 99), min_size=1, max_size=40))
def test_where_none_was_cut_it_is_the_plain_median_and_nothing_changes(lengths: list[int]) -> None:
    given = arrays([(one, False) for one in lengths])
    assert median(*given) == median_low(lengths)
    assert completed(*given).tolist() == lengths


CUT = [
    ([(8155, True)], [8156]),  # nothing is known of how answers end
    ([(20, False), (30, False), (25, False), (8155, True)], [20, 30, 25, 30]),
    ([(10, True), (20, False), (40, False)], [30, 20, 40]),  # the mean of those that became longer
    ([(10, True), (10, False), (40, False)], [40, 10, 40]),  # one that ended there did not become longer
    ([(100, True)] * 9 + [(20, False)], [101] * 9 + [20]),  # most answers are cut: that is what they are like
    ([(64, True)] * 18 + [(20, False), (8155, True)], [65] * 18 + [20, 65]),
]


@pytest.mark.parametrize(("answers", "expected"), CUT)
def test_an_answer_that_was_cut_counts_as_those_that_became_longer(answers: Answers, expected: list[float]) -> None:
    assert completed(*arrays(answers)) == pytest.approx(expected)


@given(ANSWERS.filter(bool))
def test_whole_answers_stay_as_they_are_and_no_answer_becomes_longer_than_a_token_beyond_all(answers: Answers) -> None:
    lengths, cut = arrays(answers)
    found = completed(lengths, cut)
    assert (found[~cut] == lengths[~cut]).all()
    assert found.max() <= lengths.max() + 1 and np.isfinite(found).all()
