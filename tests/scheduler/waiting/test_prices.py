"""What rows cost their device, by hand."""

from __future__ import annotations

import pytest

from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.prices import UNMEASURED, Prices, device_prices
from tests.scheduler.fakes import request

WORK = Prices(prompt=2.0, entry=5.0, token=3.0, cell=0.5)
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
    assert guessed.unit * 16 == 0.02 and device_prices(MODEL).unit == 1.0


def test_what_a_request_has_had_counts_its_prompt_from_the_start() -> None:
    one = request(length=4)
    assert WORK.attained(one) == 5 + 2 * 4
    one.generated = 6
    assert WORK.attained(one) == 5 + 2 * 4 + 6 * 3 + 0.5 * 6 * 7
