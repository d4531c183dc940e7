"""Does it fit, in numbers."""

import pytest

from scheduler.batching.memory import MEMORIES, find_peak, predicted_length
from tests.scheduler.fakes import request, requests, worker

scale, whole, slice_bound, deepspeed = (MEMORIES[name] for name in ("scale", "whole", "slice", "deepspeed"))


FITS = [
    ([], 1, 99, True),
    ([], 1, 100, True),  # a single row always fits an idle executor
    ([], 2, 100, False),  # which used to be given as many rows of any length as it has slots
    ([], 4, 24, True),  # 4 x 25 columns: the next token counts
    ([], 4, 25, False),
    ([49], 1, 10, True),  # 2 x 50
    ([49], 1, 50, False),
    ([30], 2, 20, True),  # 3 x 31
    ([30], 3, 20, False),
    ([30, 10, 10], 1, 1, False),  # 4 x 31: the longest row counts for all
]


@pytest.mark.parametrize(("held", "rows", "length", "fits"), FITS)
def test_rows_fit_when_all_as_long_as_the_longest_do(held: list[int], rows: int, length: int, fits: bool) -> None:
    assert scale(worker(*requests(*held), capacity=100), rows, length) is fits


def test_what_a_row_has_generated_counts() -> None:
    assert [scale(worker(request(0, 30, generated=one), capacity=100), 1, 10) for one in (0, 20)] == [True, False]


def test_whole_rows_count_for_all_that_they_may_become() -> None:
    """Ten tokens of prompt and eight of answer, of which some may be there already."""
    held = request(0, 10, generated=5)
    assert (whole.length(held), whole.length(request(1, 2))) == (18, 10)
    assert whole(worker(held, capacity=36), 1, 10) and not whole(worker(held, capacity=35), 1, 10)
    assert whole(worker(held, capacity=40), 1, 20) and not whole(worker(held, capacity=39), 1, 20)
    assert whole(worker(capacity=5), 1, 20), "one row on an idle executor"


def test_pages_are_filled_by_the_sum_of_what_rows_are_predicted_to_take() -> None:
    short, long = request(0, 10, predicted_length=3.0), request(1, 40, generated=5)  # 13, and 40 + 8 at most
    paged = MEMORIES["paged"]
    assert paged(worker(short, long, capacity=100), 3, 13) and not paged(worker(short, long, capacity=99), 3, 13)
    assert paged(worker(capacity=5), 1, 20), "one row on an idle executor"


def test_a_slice_is_bounded_by_itself_alone() -> None:
    """Rows that run before a slice are gone when it begins."""
    busy = worker(request(0, 90), capacity=100)
    assert slice_bound(busy, 4, 25) and not slice_bound(busy, 4, 26) and slice_bound(busy, 1, 101)


STEPS = [(1, 28), (512, 28), (513, 22), (1024, 22), (1025, 12), (2048, 12), (2049, 11), (30_000, 0)]


@pytest.mark.parametrize(("length", "rows"), STEPS)
def test_deepspeed_has_steps_in_place_of_a_formula(length: int, rows: int) -> None:
    """SCLS, Algorithm 2, on an executor of 24,576 tokens: 12 rows of 2,048, and 11 of more. One row may always go."""
    executor = worker(request(0, 90), capacity=24_576)
    assert deepspeed.most(24_576, length) == rows
    assert deepspeed(executor, max(1, rows), length) and not deepspeed(executor, max(1, rows) + 1, length)


def test_the_peak_is_where_a_row_ends() -> None:
    """Rows of 10 and 30 tokens with 50 and 5 left. When the second ends, they have 15 and 35; then the first has 60.

    Beside nothing that is 2 x 36 and 1 x 61 cells; beside a row of 20 it is 3 x 36 and 2 x 61.
    """
    first = request(0, length=10, max_tokens=100, predicted_length=50.0)
    second = request(1, length=30, max_tokens=100, predicted_length=5.0)
    assert find_peak([first, second], 0, 0) == 72
    assert find_peak([first, second], 1, 20) == 122
    assert find_peak([], 2, 40) == 82
    assert predicted_length(first) == 60
    peak = MEMORIES["peak"]
    assert [peak(worker(first, second, capacity=cells), 1, 20) for cells in (121, 122)] == [False, True]
