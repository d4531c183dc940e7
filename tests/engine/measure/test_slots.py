"""The number of rows that a device gains by, on a clock of our own."""

from collections.abc import Callable

import pytest

from engine.measure.slots import FoundSlots, find_slots


def find(cost: Callable[[int], float], most: int = 1000, time_limit: float = 1000.0) -> tuple[FoundSlots, list[int]]:
    """The slots found, and the rows that were measured, where measuring takes as long as a step."""
    seconds, measured = 0.0, list[int]()

    def step(rows: int) -> float:
        nonlocal seconds
        measured.append(rows)
        seconds += cost(rows)
        return cost(rows)

    return find_slots(step, most, time_limit, lambda: seconds), measured


GAINS = [
    (lambda rows: 1.0, 128, 128),  # weights alone bind
    (lambda rows: rows, 8, 16),  # arithmetic alone
    (lambda rows: max(1.0, rows / 32), 32, 64),
    (lambda rows: max(1.0, rows / 64) if rows < 100 else 2.2, 64, 128),  # it becomes worse
    (lambda rows: 1 + rows / 10, 64, 128),  # both: 64 bring 13 % more than 32, 128 7 % more than 64
]


@pytest.mark.parametrize(("cost", "slots", "last"), GAINS)
def test_twice_as_many_rows_must_bring_a_tenth(cost: Callable[[int], float], slots: int, last: int) -> None:
    assert find(cost)[0] == (slots, True) and find(cost)[1][-1] == last


def test_memory_bounds_them() -> None:
    assert find(lambda rows: 1.0, most=50) == ((32, True), [8, 16, 32])
    assert find(lambda rows: 1.0, most=3) == ((3, True), [])


def test_measuring_ends_in_time_with_32_at_least() -> None:
    assert find(lambda rows: 2.0, time_limit=3.0) == ((32, False), [8])
    assert find(lambda rows: 2.0, time_limit=13.0) == ((128, True), [8, 16, 32, 64, 128])
    assert find(lambda rows: 2.0, time_limit=11.0) == ((64, False), [8, 16, 32, 64])
    assert find(lambda rows: 2.0, most=10, time_limit=3.0) == ((10, True), [8])
