"""Does it fit, in numbers."""

from __future__ import annotations

import pytest

from scheduler.memory import scale
from tests.scheduler.fakes import request, worker


@pytest.mark.parametrize(
    ("held", "rows", "length", "fits"),
    [
        ([], 1, 99, True),
        ([], 4, 24, True),  # 4 x 25 columns: the next token counts
        ([], 4, 25, False),
        ([49], 1, 10, True),  # 2 x 50
        ([49], 1, 50, False),
        ([30], 2, 20, True),  # 3 x 31
        ([30], 3, 20, False),
        ([30, 10, 10], 1, 1, False),  # 4 x 31: the longest row counts for all
    ],
)
def test_rows_fit_when_all_of_them_as_long_as_the_longest_do(
    held: list[int], rows: int, length: int, fits: bool
) -> None:
    requests = [request(row_id, tokens) for row_id, tokens in enumerate(held)]
    assert scale(worker(*requests, capacity=100), rows, length) is fits


def test_a_single_row_always_fits_an_idle_executor_but_two_need_not() -> None:
    """An idle executor used to be given as many rows of any length as it has slots."""
    idle = worker(capacity=100)
    assert scale(idle, 1, 100) and not scale(idle, 2, 100)


def test_what_a_row_has_generated_counts_as_well() -> None:
    one = request(0, 30)
    assert scale(worker(one, capacity=100), 1, 10)
    one.generated = 20
    assert not scale(worker(one, capacity=100), 1, 10)
