"""The fallback: the quantile of an instruction's latest answers, else of all, else nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.length.history import LengthHistory, RunningQuantile


def test_nothing_is_expected_before_anything_ended() -> None:
    assert LengthHistory().expect("translate") is None


def test_an_instruction_has_its_own_quantile_and_others_that_of_all() -> None:
    history = LengthHistory()
    for length in (10, 20, 30):
        history.add("translate", length)
    for length in (100, 200, 300, 400):
        history.add("write", length)
    assert history.expect("translate") == 20
    assert history.expect("write") == 300
    assert history.expect("new") == 100


def test_the_instruction_longest_unheard_of_is_forgotten() -> None:
    history = LengthHistory(instructions=2)
    for instruction, length in (("a", 10), ("b", 20), ("a", 10), ("c", 90)):
        history.add(instruction, length)
    assert (history.expect("a"), history.expect("c")) == (10, 90)
    assert history.expect("b") == 20  # that of all: 10, 10, 20, 90


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 10), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_the_running_quantile_is_that_of_the_newest_values(values: list[int], window: int, quantile: float) -> None:
    running = RunningQuantile(quantile, window)
    for value in values:
        running.add(value)
    newest = sorted(values[-window:])
    assert running.value() == newest[min(len(newest) - 1, int(np.floor(quantile * len(newest))))]


def test_a_quantile_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        LengthHistory(1.5)
