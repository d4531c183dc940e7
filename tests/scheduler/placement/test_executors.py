"""Where to: who is asked first."""

from __future__ import annotations

from scheduler.placement.executors import idle_first, max_min, round_robin
from scheduler.plan import Assignment, Plan
from scheduler.worker import Worker
from tests.scheduler.fakes import port, request


def holding(index: int, rows: int, *, slots: int = 4) -> Worker:
    return Worker(port(index, rows=slots), {row_id: request(row_id) for row_id in range(rows)})


def order(*workers: Worker) -> list[int]:
    return [one.info.index for one in idle_first(workers)]


def test_the_emptiest_executor_comes_first_and_equals_by_index() -> None:
    assert order(holding(2, 0), holding(0, 3), holding(1, 1), holding(3, 0)) == [2, 3, 1, 0]


def test_emptiness_is_relative_to_size() -> None:
    assert order(holding(0, 2, slots=4), holding(1, 3, slots=16)) == [1, 0]


def test_nobody_is_left_out() -> None:
    assert order(holding(0, 9, slots=4), holding(1, 4)) == [1, 0]
    assert order() == []


def given(index: int, *estimates: float, plans: int = 0) -> Worker:
    """An executor with plans of one row each that take so long."""
    worker = Worker(port(index), plans=plans)
    for row_id, estimate in enumerate(estimates):
        worker.requests[row_id] = request(row_id)
        worker.assignments[row_id] = Assignment(Plan((worker.requests[row_id],), estimate=estimate), index, 0.0)
    return worker


def test_in_turn_means_whoever_was_given_the_fewest_plans_whatever_is_left_of_them() -> None:
    workers = [given(0, plans=2), given(2, 9.0, plans=1), given(1, 9.0, 9.0, plans=1)]
    assert [one.info.index for one in round_robin(workers)] == [1, 2, 0]


def test_the_least_loaded_comes_first_then_the_emptiest_then_by_index() -> None:
    workers = [given(0, 2.0), given(1, 1.0, 0.5), given(2, 1.5), given(4), given(3)]
    assert [one.info.index for one in max_min(workers)] == [3, 4, 2, 1, 0]
