"""The fallback: the median of an instruction's latest answers, else of all, else nothing; and Kaplan and Meier's
estimate by hand and against the textbook's product, for answers that were cut."""

from fractions import Fraction
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler.length.learning import HOLDERS, LengthHistory, completed, median


def test_an_instruction_has_its_own_median_and_others_that_of_all() -> None:
    history = LengthHistory()
    for length in (10, 20, 30):
        history.add("", "translate", length)
    for length in (100, 200, 300, 400, 500):
        history.add("", "write", length)
    assert (history.expect("", "translate"), history.expect("", "write")) == (20, 300)
    assert history.expect("", "new") == 100


def test_the_instruction_longest_unheard_of_is_forgotten() -> None:
    history = LengthHistory(instructions=3)
    for instruction, length in (("a", 10), ("b", 20), ("a", 10), ("c", 90)):
        history.add("", instruction, length)
    assert (history.expect("", "a"), history.expect("", "c")) == (10, 90)
    assert history.expect("", "b") == 10  # that of all: 10, 10, 20, 90


def test_a_runaway_answer_is_not_what_is_expected_next() -> None:
    history = LengthHistory()
    history.add("", "", 8155, cut=True)
    assert history.expect("", "") is None, "only that some answer is longer than that is known"
    history.add("", "translate", 20)
    history.add("", "translate", 30)
    assert history.expect("", "") == 30, "that of all: half of 20, 30 and a longer one"
    history.add("", "", 25)
    assert (history.expect("", ""), history.expect("", "translate")) == (25, 20)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 10))
def test_the_median_is_that_of_the_newest_values(values: list[int], window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.length.learning.WINDOW", window)
        history = LengthHistory()
        for place, value in enumerate(values, start=1):
            history.add("", "translate", value)
            assert history.expect("", "translate") == median_low(values[:place][-window:])


@pytest.mark.parametrize("holders", [1, HOLDERS - 1, HOLDERS, 3 * HOLDERS])
def test_a_key_learns_nothing_of_what_another_sent(holders: int) -> None:
    """Whatever it asks, a key without answers has the same: a power of two of what several keys had, one answer of
    each, so that no key's answers show however many these are."""
    history = LengthHistory()
    for _ in range(300):
        history.add("a", "the secret prompt", 900)
        history.add("a:salt", "the secret prompt", 901)
    for place in range(holders - 1):
        history.add(f"k{place}", "another", 20)
    assert history.expect("a", "the secret prompt") == 900
    asked = {history.expect("b", prompt) for prompt in ("the secret prompt", "the secret promp", "never sent")}
    assert asked == {16.0 if holders >= HOLDERS else None}
    history.add("b", "own", 7)
    assert history.expect("b", "the secret prompt") == history.expect("b", "never sent") == 7


def test_one_key_with_many_salts_and_instructions_erases_nothing_of_another() -> None:
    """After 1,100 answers to salted prompts of one key, another key got that key's lengths for its own."""
    history = LengthHistory()
    history.add("b", "novel", 150)
    for place in range(20_000):
        history.add(f"a:{place}", f"instruction {place}", 1)
    assert history.expect("b", "novel") == 150


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
