"""Prices of rows, worked out by hand."""

from dataclasses import replace

import pytest

from scheduler.serving_time.bilinear import Bilinear
from scheduler.waiting.prices import Prices, device_prices
from tests.scheduler.fakes import request

WORK = Prices(prompt=2.0, entry=5.0, token=3.0, cell=0.5)
MODEL = Bilinear(p1=2.0, p2=1.0, p3=0.5, p4=4.0, d1=0.5, d2=3.0, d3=0.8, d4=16.0)
MEMORY = {"capacity_tokens": 400, "context_length": 100}


def test_a_request_pays_for_its_prompt_its_tokens_and_the_cells_they_read() -> None:
    one = request(length=4, predicted_length=6.0)
    # 5 + 2·4 to read the prompt; 6 tokens of 3; 6 of them beside 4 + 3 cells on average
    assert WORK.work(one) == 5 + 8 + 6 * 3 + 0.5 * 6 * 7
    assert replace(WORK, square=0.25).work(one) == WORK.work(one) + 0.25 * 4 * 4, "what its tokens attend to"


def test_one_that_was_handed_back_pays_for_the_rest() -> None:
    one = request(length=4, predicted_length=6.0, generated=4)
    assert WORK.work(one) == 2 * 3 + 0.5 * 2 * 9
    one.lacks_kv = True
    assert WORK.work(one) == (5 + 2 * 8) + 2 * 3 + 0.5 * 2 * 9, "and for all its tokens, should its K and V be gone"


def test_what_an_iteration_costs_anyway_is_shared_by_slots_or_by_memory() -> None:
    """Rows are taken to be 50 tokens long: 8 of them fit in 400, so 4 slots are few, and 20 are more than enough."""
    few = device_prices(replace(MODEL, p5=6.0), slots=4, **MEMORY)
    unit = 3 + 16 / 4 + (0.5 + 0.8 / 4) * 50
    assert (few.unit, few.square) == pytest.approx((unit, 6.0 / unit))
    assert (few.prompt, few.entry) == pytest.approx((2.5 / unit, 5.0 / unit))
    assert (few.token, few.cell) == pytest.approx(((3 + 16 / 4) / unit, (0.5 + 0.8 / 4) / unit))
    many = device_prices(MODEL, slots=20, **MEMORY)
    unit = 3 + (0.5 + 0.8 / 8 + 16 / 400) * 50
    assert (many.token, many.cell) == pytest.approx((3 / unit, (0.5 + 0.8 / 8 + 16 / 400) / unit))


@pytest.mark.parametrize(("slots", "context"), [(4, 100), (20, 100), (20, 400), (400, 400)])
def test_an_iteration_costs_what_the_machine_says_however_its_fixed_part_is_shared(slots: int, context: int) -> None:
    """Full slots were said to be faster than one row where memory holds fewer rows: promises were of a tenth."""
    model = replace(MODEL, d3=0.0)
    prices = device_prices(model, slots=slots, capacity_tokens=400, context_length=context)
    for rows in (1, 2, 4):
        assert prices.seconds_per_token(rows, slots, 30) == pytest.approx(model.iteration(float(rows), 30.0))


def test_while_nothing_is_known_a_request_costs_its_tokens_still_to_come() -> None:
    assert device_prices().work(request(length=400, max_tokens=50, predicted_length=30.0)) == 30
    unknown = device_prices(slots=8)  # as if rows took turns: the fewest requests are the best guess
    assert unknown.unit == 0.02 / 8 and unknown.seconds_per_token(4, 8, 50.0) == pytest.approx(4 * unknown.unit)


def test_a_machine_that_is_slower_as_a_whole_changes_no_work_and_one_of_no_cost_gives_none() -> None:
    one, (before, after) = request(length=40), (device_prices(MODEL.slowed(by), slots=4, **MEMORY) for by in (1, 3))
    assert after.work(one) == pytest.approx(before.work(one)) and after.unit == pytest.approx(3 * before.unit)
    assert device_prices(Bilinear(0, 0, 0, 0, 0, 0, 0, 0)).work(one) == 0


def test_what_a_request_has_had_counts_its_prompt_from_the_start() -> None:
    assert WORK.attained(request(length=4)) == 5 + 2 * 4
    assert WORK.attained(request(length=4, generated=6)) == 5 + 2 * 4 + 6 * 3 + 0.5 * 6 * 7
