"""The fallback: the median of an instruction's latest answers, else of all, else nothing."""

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.length.learning import HOLDERS, LengthHistory


def test_nothing_is_expected_before_anything_ended() -> None:
    assert LengthHistory().expect("", "translate") is None


def test_an_instruction_has_its_own_median_and_others_that_of_all() -> None:
    history = LengthHistory()
    for length in (10, 20, 30):
        history.add("", "translate", length)
    for length in (100, 200, 300, 400, 500):
        history.add("", "write", length)
    assert history.expect("", "translate") == 20
    assert history.expect("", "write") == 300
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
