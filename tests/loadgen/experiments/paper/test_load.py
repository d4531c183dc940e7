"""The requests of the papers' experiments, and how wrong their predictors are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.experiments.paper import load
from loadgen.experiments.paper.load import PaperLoad, Pool, chat_pool, task_pool, trace_pool
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from tests.loadgen.workload.args import write_trace

POOL = Pool(tuple(RequestLengths(0.0, place + 1, 1) for place in range(10)), "ten")


def test_a_load_takes_the_pool_in_order_and_begins_again() -> None:
    made = PaperLoad(rate=2.0, count=12).requests(POOL)
    assert [one.input_length for one in made] == [*range(1, 11), 1, 2]
    assert made[-1].arrival == pytest.approx(6.0)
    assert PaperLoad(rate=2.0, count=12).requests(POOL) == made


def test_another_seed_has_other_requests_at_other_times() -> None:
    one, two = (PaperLoad(2.0, 4, seed=seed).requests(POOL) for seed in (0, 1))
    assert [each.input_length for each in two] == [5, 6, 7, 8]
    assert [each.arrival for each in one] != [each.arrival for each in two]


def test_sorted_gaps_are_the_same_ones_the_shortest_first() -> None:
    load = PaperLoad(2.0, 9, burstiness=0.25, seed=3)
    plain, sorted_ones = (
        np.diff([0.0, *(one.arrival for one in which.requests(POOL))])
        for which in (load, replace(load, sorted_gaps=True))
    )
    assert list(plain) != sorted(plain)
    assert sorted_ones == pytest.approx(sorted(plain))


def test_a_traces_own_times_are_stretched_to_the_rate() -> None:
    pool = Pool(tuple(RequestLengths(float(place**2), 1, 1) for place in range(10)), "squares")
    made = PaperLoad(rate=0.5, count=4, seed=1, own_times=True).requests(pool)
    assert [one.arrival for one in made] == pytest.approx([0.0, 8 * 9 / 33, 8 * 20 / 33, 8.0]), "requests 4 to 7"
    last = PaperLoad(rate=0.5, count=4, seed=2, own_times=True).requests(pool)
    assert [one.arrival for one in last] == pytest.approx([0.0, 8 / 9, 32 / 9, 8.0]), "too few are left: the first ones"


def test_a_trace_shorter_than_the_load_begins_again_after_its_end() -> None:
    """Its times began at 0 again, so that requests came in another order than they were asked for."""
    pool = Pool(tuple(RequestLengths(float(time), 1, 1) for time in (0, 1, 4)), "three")
    made = PaperLoad(rate=1.0, count=5, own_times=True).requests(pool)
    assert [one.arrival for one in made] == pytest.approx([5 * time / 7 for time in (0, 1, 4, 6, 7)]), "a gap of 2"
    once = Pool(POOL.lengths[:1], "one request, so that there is no time to stretch")
    assert {one.arrival for one in PaperLoad(rate=1.0, count=3, own_times=True).requests(once)} == {0.0}


def test_of_a_huge_trace_the_first_requests_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOST", 2)
    rows = (f"2023-11-16 18:00:0{second},{second + 1},1" for second in (3, 1, 2))
    pool = trace_pool(Path(write_trace(tmp_path / "huge.csv", rows)))
    assert [one.input_length for one in pool.lengths] == [2, 3] and "the first 2 lengths of the trace" in pool.source


def test_drawn_lengths_have_their_shape() -> None:
    pool = chat_pool(seed=1, count=5000)
    assert chat_pool(seed=1, count=5000) == pool != chat_pool(seed=2, count=5000)
    logs = np.log([one.output_length for one in pool.lengths])
    assert np.median(logs) == pytest.approx(5.019, abs=0.05)
    assert max(one.input_length for one in pool.lengths) == load.LONGEST
    assert min(one.output_length for one in pool.lengths) >= 1
    assert "drawn" in pool.source and max(one.output_length for one in chat_pool(1, 512, 5000).lengths) == 512


def test_a_trace_is_clipped(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:00:00,5000,700", "2023-11-16 18:00:01,3,2")
    pool = trace_pool(Path(write_trace(tmp_path / "some.csv", rows)), 512)
    assert [(one.input_length, one.output_length) for one in pool.lengths] == [(1024, 512), (3, 2)]
    assert "some.csv" in pool.source
    with pytest.raises(UserError):
        trace_pool(tmp_path / "none.csv")


def test_tasks_need_no_file() -> None:
    pool = task_pool(seed=0, count=16)
    assert len(pool.lengths) == 16 and "built-in" in pool.source
    assert all(1 <= one.input_length <= load.LONGEST and 1 <= one.output_length <= load.LONGEST for one in pool.lengths)


def test_the_error_of_predictions_is_the_one_asked_for() -> None:
    """For equal lengths n: n² (exp(2σ²)·exp(σ²)... the mean square of exp(σz + σ²/2) - 1 is exp(2σ²) - 2·exp(σ²) + 1
    with the mean's factor, times n²; solved here for σ = 0.1."""
    sigma = 0.1
    square = np.exp(3 * sigma**2) - 2 * np.exp(sigma**2) + 1
    assert load.sigma_for_rmse([200] * 20_000, 200 * float(np.sqrt(square))) == pytest.approx(sigma, rel=0.01)


def test_classes_are_told_apart_as_well_as_asked_for() -> None:
    lengths = [one.output_length for one in chat_pool(0, 512, 4000).lengths]
    sigmas = [load.sigma_for_accuracy(lengths, (0.25, 0.5, 0.75, 0.99), accuracy) for accuracy in (0.9, 0.615, 0.4)]
    assert sigmas == sorted(sigmas) and 0.2 < sigmas[1] < 1.0


def test_lengths_that_hardly_differ_have_no_such_accuracy() -> None:
    """A sigma of 4 came out of it, with predictions a thousand times too long, and nothing was said."""
    with pytest.raises(UserError, match=r"61\.5% .* too many are of one length"):
        load.sigma_for_accuracy([100] * 300, (0.25, 0.5, 0.75, 0.99), 0.615)
