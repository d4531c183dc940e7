"""Where to: who is asked first."""

from __future__ import annotations

from scheduler.placement import idle_first
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
