"""The executor's thread, over the rows of the tiny model: commands in, one report a turn out, and its last word."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine.executor import Executor
from engine.messages import Admit, Cancel, Cause, ExecutorDied, ExecutorInfo, HandedBack, Pause, StepReport, StepStats
from tests.engine.rows import lifecycle_of, spec
from tests.tiny import Net

PATIENCE = 20.0
"""Seconds after which something that should have happened has not."""


class Bench:
    """An executor of rows of three tokens, what it asks of them, in order, and what it reports."""

    def __init__(self, net: Net) -> None:
        self.lifecycle, self.reports = lifecycle_of(*net), queue.Queue[Any]()
        self.asked, self.modes, self.looks = list[object](), set[bool](), queue.Queue[float]()
        self.during_turn: Callable[[], None] = lambda: None
        info = ExecutorInfo(3, "cpu", capacity_tokens=100, max_rows=4, context_length=50)
        self.executor = Executor(info, self.lifecycle, self.reports.put, clock=self.look)
        table = self.lifecycle.table
        for owner, name in ((self.lifecycle, "turn"), (table, "carry_out"), (table, "leave_store")):
            setattr(owner, name, partial(self.note, name, getattr(owner, name)))

    def look(self) -> float:
        self.looks.put(now := time.monotonic())
        return now

    def note(self, name: str, work: Callable[..., object], *command: object) -> object:
        self.asked.append(command[0] if command else name)
        if name == "turn":
            self.modes.add(torch.is_inference_mode_enabled())
            self.during_turn()
        return work(*command)

    def step(self) -> StepReport:
        report = self.reports.get(timeout=PATIENCE)
        assert isinstance(report, StepReport)
        return report

    def ran(self) -> list[int]:
        """Rows that got a token in the next turn."""
        return [update.row_id for update in self.step().updates]

    def admit(self, *tokens: int, first: int = 0) -> Admit:
        """Rows that take as many turns."""
        command = Admit(tuple(spec(row_id, max_tokens=most) for row_id, most in enumerate(tokens, first)))
        self.executor.post(command)
        return command

    def hold_turn(self, *tokens: int) -> tuple[Admit, threading.Event]:
        """Admit rows, and wait until their first turn has begun, which then waits for the event."""
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert go_on.wait(PATIENCE)

        self.during_turn = hold
        command = self.admit(*tokens)
        assert begun.wait(PATIENCE)
        return command, go_on


@pytest.fixture
def bench(net: Net) -> Iterator[Bench]:
    bench = Bench(net)
    bench.executor.start()
    yield bench
    bench.executor.stop(PATIENCE)
    assert not bench.executor.alive


def test_each_turn_gives_one_report_with_all_rows(bench: Bench) -> None:
    admitted = bench.admit(2, 1)
    first, second = bench.step(), bench.step()
    assert [[update.row_id for update in report.updates] for report in (first, second)] == [[0, 1], [0]]
    assert [(report.executor, report.step, report.shape.staged) for report in (first, second)] == [(3, 1, 1), (3, 2, 0)]
    assert first.seconds >= 0 and bench.modes == {True}, "gradients are off in the thread"
    assert bench.asked == [admitted, "turn", "turn"]


def test_orders_that_come_during_a_turn_are_carried_out_before_the_next(bench: Bench) -> None:
    first, go_on = bench.hold_turn(9)
    second, cancel = bench.admit(2, first=1), Cancel((0,))
    bench.executor.post(cancel)
    third = bench.admit(1, first=2)
    go_on.set()
    turns = [bench.ran() for _ in range(3)]
    assert turns[0] == [0] and {row_id for ran in turns[1:] for row_id in ran} == {1, 2}
    assert bench.asked[:6] == [first, "turn", second, cancel, third, "turn"]


def test_an_executor_with_nothing_to_do_sleeps_until_an_order_comes(bench: Bench) -> None:
    bench.admit(1)
    bench.step()
    with pytest.raises(queue.Empty):
        for _ in range(10):  # it looks at the clock a few times at most, then never again
            bench.looks.get(timeout=0.4)
    bench.admit(1, first=1)
    assert bench.ran() == [1]


def test_an_executor_whose_last_rows_are_cancelled_reports_that_it_is_empty(bench: Bench) -> None:
    """It said nothing, so that its gauges showed a full batch until the next request."""
    _, go_on = bench.hold_turn(9, 9)
    bench.executor.post(Cancel((0, 1)))
    go_on.set()
    first, last = bench.step(), bench.step()
    assert (first.shape.staged, first.begun, first.tally.prompt) == (2, (0, 1), 6)
    assert (last.shape.staged, last.seconds, last.updates, last.begun, last.tally) == (0, 0.0, (), (), StepStats())
    bench.executor.post(Cancel((0, 1)))
    bench.admit(1, first=2)
    assert bench.ran() == [2] and bench.asked.count("turn") == 2, "no empty turn"


def test_stopping_ends_the_thread_after_the_turn_under_way(bench: Bench) -> None:
    _, go_on = bench.hold_turn(1000)
    bench.executor.stop(timeout=0.05)
    assert bench.executor.alive
    go_on.set()
    bench.executor.stop(PATIENCE)
    assert bench.reports.qsize() == 1 and not bench.executor.alive


class Ruin(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("fault", [RuntimeError, Ruin])
def test_a_fault_in_a_turn_is_the_last_word_and_is_said_once(bench: Bench, fault: type[BaseException]) -> None:
    """With the row that was not running, whose tokens are all told."""
    turns = count()

    def fail() -> None:
        if next(turns):
            raise fault("out of luck")

    bench.during_turn = fail
    bench.admit(3)
    bench.step()
    assert bench.reports.get(timeout=PATIENCE) == ExecutorDied(3, f"{fault.__name__}: out of luck", (0,))
    bench.admit(1, first=1)
    bench.executor.stop(PATIENCE)
    assert bench.reports.empty() and not bench.executor.alive


def test_orders_that_were_not_taken_up_are_given_back(bench: Bench) -> None:
    first, go_on = bench.hold_turn(9)
    commands = bench.admit(8, first=1), Cancel((0,))
    bench.executor.post(commands[1])
    assert bench.executor.reclaim() == commands and bench.executor.reclaim() == ()
    bench.executor.stop(0)
    go_on.set()
    bench.executor.stop(PATIENCE)
    assert bench.asked == [first, "turn", "leave_store", "leave_store"]


def test_a_fault_in_an_order_is_told_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.lifecycle.table, "admit", Mock(side_effect=KeyError("row")))
    bench.admit(3)
    assert bench.reports.get(timeout=PATIENCE) == ExecutorDied(3, "KeyError: 'row'")


def test_what_is_handed_back_is_told_though_nothing_else_is_left_to_do(bench: Bench) -> None:
    _, go_on = bench.hold_turn(9)
    bench.executor.post(Pause((0,)))
    go_on.set()
    assert [bench.step().handed_back for _ in range(2)] == [(), (HandedBack((0,), Cause.PAUSE),)]


def test_the_thread_computes_on_its_own_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device is each thread's own: what was captured on another was replayed from the first."""
    chosen: queue.Queue[tuple[str, str]] = queue.Queue()
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: chosen.put((name, threading.current_thread().name)))
    executor = Executor(replace(bench.executor.info, index=5, device="cuda:1"), bench.lifecycle, bench.reports.put)
    executor.start()
    assert chosen.get(timeout=PATIENCE) == ("cuda:1", "executor-5")
    executor.stop(PATIENCE)
    assert chosen.empty(), "nobody else chose"
