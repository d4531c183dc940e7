"""What rows cost their device, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.prices import UNMEASURED, Prices, device_prices, enough_rows
from tests.scheduler.fakes import request, worker

WORK = Prices(prompt=2.0, entry=5.0, token=3.0, cell=0.5, copy=0.25, row_copy=1.5, keep_kv=range(8, 100))
MODEL = Bilinear(p1=2.0, p2=1.0, p3=0.5, p4=4.0, d1=0.5, d2=3.0, d3=0.8, d4=16.0)


def test_a_request_pays_for_its_prompt_its_tokens_and_the_cells_they_read() -> None:
    one = request(length=4)
    one.predicted_length = 6.0
    # 5 + 2·4 to read the prompt; 6 tokens of 3; 6 of them beside 4 + 3 cells on average
    assert WORK.work(one) == 5 + 8 + 6 * 3 + 0.5 * 6 * 7


def test_one_that_was_handed_back_pays_for_the_rest() -> None:
    one = request(length=4)
    one.predicted_length, one.generated = 6.0, 4
    assert WORK.work(one) == 2 * 3 + 0.5 * 2 * 9
    one.lacks_kv = True
    assert WORK.work(one) == (5 + 2 * 8) + 2 * 3 + 0.5 * 2 * 9, "and for all its tokens, should its K and V be gone"


def test_a_shorter_row_pays_for_its_padding_and_a_longer_one_for_that_of_others() -> None:
    short, long_one = request(1, length=4), request(2, length=20)
    short.predicted_length = long_one.predicted_length = 6.0
    held = worker(request(3, length=10), request(4, length=8))
    assert WORK.padded_work(short, held) - WORK.work(short) == 0.5 * 6 * (10 - 4)
    assert WORK.padded_work(long_one, held) - WORK.work(long_one) == 0.5 * 2 * 6 * (20 - 10)


def test_a_swap_is_told_in_iterations() -> None:
    assert WORK.swap_iterations(request(length=10)) == pytest.approx((0.25 * 10 + 1.5) / (3 + 0.5 * 10))
    assert WORK.swap_iterations(request(length=6)) == pytest.approx((2 * 6 + 5) / (3 + 0.5 * 6)), "it is read again"


def test_copies_cost_what_was_measured_or_else_a_part_of_reading() -> None:
    measured = device_prices(replace(MODEL, c1=0.125, c0=0.75), keep_kv=range(5))
    assert (measured.copy, measured.row_copy, measured.keep_kv) == (0.125, 0.75, range(5))
    assert (device_prices(MODEL).copy, device_prices(MODEL).row_copy) == pytest.approx((0.4 * 2.5, 0.0))


def test_what_an_iteration_costs_anyway_is_shared_by_slots_or_by_memory() -> None:
    """Rows are taken to be 50 tokens long: 8 of them fit in 400, so 4 slots are few, and 20 are more than enough."""
    few = device_prices(MODEL, slots=4, capacity_tokens=400, context_length=100)
    assert (few.prompt, few.entry) == (2.5, 5.0)
    assert (few.token, few.cell) == pytest.approx((3 + 16 / 4, 0.5 + 0.8 / 4))
    many = device_prices(MODEL, slots=20, capacity_tokens=400, context_length=100)
    assert (many.token, many.cell) == pytest.approx((3.0, 0.5 + 0.8 / 8 + 16 / 400))


def test_nothing_need_be_known_of_the_device() -> None:
    guessed = device_prices()
    assert guessed.token == UNMEASURED.d2 + UNMEASURED.d4 / 16
    assert min(guessed.prompt, guessed.token, guessed.cell) > 0


@pytest.mark.parametrize(
    ("fixed", "each", "rows"),
    [
        (1.0, 0.0, 32),  # a row more costs nothing, so all are wanted
        (1.0, 1.0, 20),  # 32 / 33 tokens a second with all slots: 0.98 of that is 0.9503, 20 / 21 is 0.9524
        (0.0, 1.0, 1),  # a row alone is as fast as all together
        (0.0, 0.0, 32),
    ],
)
def test_rows_are_enough_when_more_hardly_make_more_tokens(fixed: float, each: float, rows: int) -> None:
    assert enough_rows(Bilinear(0, 0, 0, 0, 0, each, 0, fixed), 100.0, 32) == rows
