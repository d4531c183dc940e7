"""When an answer counts as repeating itself: checked against a plain search of its tokens."""

import pytest
from hypothesis import given, strategies as st

from engine import repetition
from engine.repetition import LEAST_TIMES, LEAST_TOKENS, LONGEST_PERIOD, RepetitionDetector


def fired(tokens: list[int], *bounds: int) -> int | None:
    """How many tokens it takes until the repetition is noticed; None when it never is."""
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in zip(("LONGEST_PERIOD", "LEAST_TOKENS", "LEAST_TIMES"), bounds, strict=False):
            patch.setattr(repetition, name, bound)
        detector = RepetitionDetector()
        return next((place for place, token in enumerate(tokens, start=1) if detector.push(token)), None)


def repeats(tokens: list[int], longest_period: int, least_tokens: int, least_times: int) -> bool:
    """Whether the end of the tokens is a run that is there often enough, as one reads it off."""
    for period in range(1, longest_period + 1):
        wanted = max(least_tokens, least_times * period)
        end = tokens[-wanted:]
        if len(end) == wanted and end[period:] == end[:-period]:
            return True
    return False


BOUNDS = st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(2, 4))


@given(st.lists(st.integers(0, 2), max_size=60), BOUNDS)
def test_it_fires_where_a_plain_search_first_finds_one(tokens: list[int], bounds: tuple[int, int, int]) -> None:
    ends = range(1, len(tokens) + 1)
    assert fired(tokens, *bounds) == next((end for end in ends if repeats(tokens[:end], *bounds)), None)


@given(st.lists(st.integers(0, 9), max_size=400), st.lists(st.integers(0, 9), min_size=1, max_size=LONGEST_PERIOD))
def test_any_run_up_to_the_longest_period_is_noticed_when_it_must_be(beginning: list[int], run: list[int]) -> None:
    covered = max(LEAST_TOKENS, LEAST_TIMES * len(run))
    place = fired(beginning + run * (covered // len(run) + 1))
    assert place is not None and place <= len(beginning) + covered


@given(st.integers(1, LONGEST_PERIOD), st.integers(1, 1000))
def test_a_run_that_is_there_once_too_few_is_left_alone(period: int, token: int) -> None:
    covered = max(LEAST_TOKENS, LEAST_TIMES * period)
    run = range(token, token + period)
    tokens = (list(run) * covered)[: covered - 1]
    assert fired(tokens) is None
    assert fired([*tokens, tokens[-period]]) == covered
