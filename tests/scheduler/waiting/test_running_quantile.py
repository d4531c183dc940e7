"""A quantile of what came last, against a plain sort."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.waiting.running_quantile import RunningQuantile


def test_before_the_first_it_is_nothing() -> None:
    assert RunningQuantile(4).quantile(0.99) == 0.0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 20), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_only_the_last_count(numbers: list[int], count: int, share: float) -> None:
    recent = RunningQuantile(count)
    for number in numbers:
        recent.add(number)
    kept = sorted(numbers[-count:])
    assert recent.quantile(share) == kept[int(share * (len(kept) - 1))]
