"""When slots let others start, against a schedule played request by request."""

import heapq
import random
from statistics import fmean

import numpy as np
import pytest

from scheduler.length.prediction import LengthDistribution
from scheduler.request import BACKGROUND, Request
from scheduler.wait_estimate.held_rows import POINTS, HeldRows
from scheduler.waiting.prices import Prices
from tests.scheduler.fakes import request

PRICES = Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.0)


def running(left: float, *, known: bool = True) -> Request:
    """A row past its first token."""
    told = LengthDistribution.certain(left + 5) if known else None
    return request(max_tokens=100_000, generated=5, predicted_length=told and told.mean, distribution=told)


def held(*rows: Request, slots: int, typical: float | None = None, stuck: bool = False) -> HeldRows:
    return HeldRows.of(rows, slots, PRICES, typical, stuck=stuck)


def test_the_next_starts_when_the_first_known_row_ends() -> None:
    rows = held(*(running(left) for left in (70, 12, 40)), slots=3)
    assert [rows.until_taken(ahead, 10.0 * ahead) for ahead in range(3)] == [12, 22, 32]


def test_one_of_rows_that_nobody_knows_ends_after_its_share_of_their_mean() -> None:
    rows = held(*(running(0, known=False) for _ in range(8)), slots=8, typical=80.0)
    assert rows.until_taken(0, 0.0) == pytest.approx(80 / 8, rel=0.15)
    assert rows.until_taken(15, 15 * 80.0) == pytest.approx(16 * 80 / 8, rel=0.05)


def test_a_staged_row_takes_the_slot_first_and_free_slots_are_taken_at_once() -> None:
    rows = held(running(12), running(40), running(10), slots=2)
    assert (rows.staged, rows.until_taken(0, 0.0), rows.until_taken(0, 0.0, slot=True)) == (1, 12, 22)
    assert held(running(12), slots=3).until_taken(2, 60.0) == 12
    assert held(running(90), slots=3).until_taken(2, 60.0) == 30
    assert held(slots=2, stuck=True).until_taken(3, 30.0) == 0


def test_background_rows_take_no_slot_but_are_read_all_the_same() -> None:
    """Free slots were counted without background rows, and the time until one ends with them."""
    background = request(priority=BACKGROUND)
    rows = held(running(12), background, slots=2)
    assert (rows.free, rows.staged, len(rows.ends) // rows.points) == (1, 0, 1)
    assert held(background, running(12), running(40), slots=2).until_taken(0, 0.0) == 12


@pytest.mark.parametrize("ahead", [0, 1, 5, 20, 100])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_starts_are_as_a_played_schedule_has_them(ahead: int, sigma: float) -> None:
    """Lengths known as distributions, log-normal with that deviation about means of 10 to 200."""
    draw = random.Random(ahead)
    means = [draw.uniform(10, 200) for _ in range(8)]
    rows, starts = [running(0, known=False) for _ in means], list[float]()
    for row, mean in zip(rows, means, strict=True):
        spread = np.exp(sigma * np.random.default_rng(1).normal(size=400)) * mean + 5
        row.predicted_length = mean
        row.distribution = LengthDistribution.of(spread.astype(np.float32), np.full(400, 1 / 400, np.float32))
    for _ in range(2000):
        slots = [mean * draw.lognormvariate(0, sigma) for mean in means]
        heapq.heapify(slots)
        for _ in range(ahead):
            heapq.heapreplace(slots, slots[0] + draw.expovariate(1 / 50))
        starts.append(slots[0])
    assert held(*rows, slots=8).until_taken(ahead, 50.0 * ahead) == pytest.approx(fmean(starts), rel=0.2)


def test_points_of_an_end_are_its_quantiles_beyond_what_is_made() -> None:
    row = running(0, known=False)
    row.distribution = LengthDistribution.of(np.arange(1, 106, dtype=np.float32), np.full(105, 1 / 105, np.float32))
    assert list(held(row, slots=1).ends) == [100 * (point + 0.5) // POINTS + 1 for point in range(POINTS)]
