"""The executor's thread, over scripted rows: commands in, one report a turn out, and its last word."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import pytest
import torch

from engine.device import Action
from engine.executor import Executor
from engine.lifecycle import Lifecycle
from engine.messages import (
    Admit,
    BatchPolicy,
    BatchShape,
    Cancel,
    Cause,
    ExecutorDied,
    ExecutorInfo,
    HandedBack,
    Pause,
    Report,
    RowId,
    RowSpec,
    RowUpdate,
    StepReport,
    StepStats,
    Stop,
)
from engine.row import Row
from engine.rows import RowTable
from tests.engine.rows import spec

PATIENCE = 20.0
"""Seconds after which something that should have happened has not."""


class ScriptedLifecycle:
    """Each admitted row takes as many turns as its prompt has tokens. Notes what is asked of it, in order."""

    def __init__(self) -> None:
        self.table = self
        self.events: queue.Queue[str] = queue.Queue()
        self.left: dict[RowId, int] = {}
        self.handed_back: tuple[HandedBack, ...] = ()
        self.during_turn: Callable[[], None] = lambda: None
        self.modes: set[bool] = set()

    updates: tuple[RowUpdate, ...] = ()
    begun: tuple[RowId, ...] = ()
    tally = StepStats()
    short, lost, capacity, failures = False, False, 1.0, MappingProxyType({Action.DECODE: 0})

    @property
    def idle(self) -> bool:
        self.events.put("idle?")
        return not (self.left or self.handed_back)

    carry_out = RowTable.carry_out

    def admit(self, specs: Iterable[RowSpec], terms: BatchPolicy) -> None:
        for one in specs:
            self.events.put(f"admit {one.row_id}")
            self.left[one.row_id] = len(one.prompt)

    def cancel(self, row_ids: Iterable[RowId]) -> None:
        for row_id in row_ids:
            self.events.put(f"cancel {row_id}")
            self.left.pop(row_id, None)

    def pause(self, row_ids: Iterable[RowId]) -> None:
        self.handed_back += (HandedBack(tuple(row_ids), Cause.PAUSE),)
        self.cancel(row_ids)

    def salvage(self) -> tuple[RowId, ...]:
        return tuple(row_id for row_id in self.left if row_id >= 100)

    def leave_store(self) -> None:
        self.events.put("leave store")

    def report(self, executor: int, step: int, seconds: float) -> StepReport:
        handed_back, self.handed_back = self.handed_back, ()
        shape, begun, tally = self.shape(), self.begun, self.tally
        return StepReport(executor, step, self.updates, shape, seconds, begun, handed_back, tally)

    def turn(self) -> None:
        self.events.put("turn")
        self.modes.add(torch.is_inference_mode_enabled())
        self.during_turn()
        self.updates = tuple(RowUpdate(row_id, (left,)) for row_id, left in self.left.items())
        self.left = {row_id: left - 1 for row_id, left in self.left.items() if left > 1}

    def shape(self) -> BatchShape:
        return BatchShape(rows=len(self.left))

    def clear(self) -> None:
        self.updates, self.begun, self.tally = (), (), StepStats()

    def noted(self) -> list[str]:
        """Events so far, looks at `idle` aside."""
        found = [self.events.get_nowait() for _ in range(self.events.qsize())]
        return [event for event in found if event != "idle?"]


ENDLESS = 100_000  # tokens


class Bench:
    """An executor over scripted rows, and what it reports."""

    def __init__(self) -> None:
        self.lifecycle = ScriptedLifecycle()
        self.reports: queue.Queue[Report] = queue.Queue()
        info = ExecutorInfo(3, "cpu", capacity_tokens=100, max_rows=4, context_length=50)
        self.executor = Executor(info, cast(Lifecycle[Row], self.lifecycle), self.reports.put)

    def alive(self) -> bool:
        return self.executor.alive

    def report(self) -> Report:
        return self.reports.get(timeout=PATIENCE)

    def step(self) -> StepReport:
        report = self.report()
        assert isinstance(report, StepReport)
        return report

    def hold_turn(self, tokens: int) -> threading.Event:
        """Admit a row, and wait until its first turn has begun, which then waits for the event."""
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert go_on.wait(PATIENCE)

        self.lifecycle.during_turn = hold
        self.executor.post(Admit((spec(0, tokens),)))
        assert begun.wait(PATIENCE)
        return go_on


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.executor.start()
    yield bench
    bench.executor.stop(PATIENCE)
    assert not bench.alive()


def test_each_turn_gives_one_report_with_all_rows(bench: Bench) -> None:
    bench.executor.post(Admit((spec(0, 2), spec(1, 1))))
    first, second = bench.step(), bench.step()
    assert [update.row_id for update in first.updates] == [0, 1]
    assert [update.row_id for update in second.updates] == [0]
    assert [(report.executor, report.step, report.shape.rows) for report in (first, second)] == [(3, 1, 1), (3, 2, 0)]
    assert first.seconds >= 0 and bench.lifecycle.modes == {True}, "gradients are off in the thread"
    assert bench.lifecycle.noted() == ["admit 0", "admit 1", "turn", "turn"]


def test_orders_that_come_during_a_turn_are_carried_out_before_the_next(bench: Bench) -> None:
    go_on = bench.hold_turn(9)
    bench.executor.post(Admit((spec(1, 2),)))
    bench.executor.post(Cancel((0,)))
    bench.executor.post(Admit((spec(2, 1),)))
    go_on.set()
    assert [update.row_id for update in bench.step().updates] == [0]
    assert [update.row_id for update in bench.step().updates] == [1, 2]
    assert [update.row_id for update in bench.step().updates] == [1]
    assert bench.lifecycle.noted() == ["admit 0", "turn", "admit 1", "cancel 0", "admit 2", "turn", "turn"]


def test_an_executor_with_nothing_to_do_sleeps_until_an_order_comes(bench: Bench) -> None:
    bench.executor.post(Admit((spec(0, 1),)))
    bench.step()
    with pytest.raises(queue.Empty):
        for _ in range(10):  # it looks whether it is idle a few times at most, then never again
            bench.lifecycle.events.get(timeout=0.4)
    bench.executor.post(Admit((spec(1, 1),)))
    assert [update.row_id for update in bench.step().updates] == [1]


def test_a_cancelled_last_row_leaves_no_empty_turns(bench: Bench) -> None:
    bench.executor.post(Admit((spec(0, 1), spec(1, 1))))
    bench.step()
    bench.executor.post(Cancel((0, 1)))
    bench.executor.post(Admit((spec(2, 1),)))
    assert [update.row_id for update in bench.step().updates] == [2]
    assert bench.lifecycle.noted().count("turn") == 2


def test_an_executor_whose_last_rows_are_cancelled_reports_that_it_is_empty(bench: Bench) -> None:
    """It said nothing, so that its gauges showed a full batch until the next request."""
    bench.lifecycle.begun, bench.lifecycle.tally = (0, 1), StepStats(prompt=2000)  # as the turn leaves them
    bench.executor.post(Admit((spec(0, ENDLESS), spec(1, ENDLESS))))
    assert bench.step().shape.rows == 2
    bench.executor.post(Cancel((0, 1)))
    last = next(report for report in iter(bench.step, None) if not report.shape.rows)
    assert (last.seconds, last.updates, last.begun, last.tally) == (0.0, (), (), StepStats())
    bench.executor.post(Cancel((0, 1)))
    bench.executor.post(Admit((spec(2, 1),)))
    assert [update.row_id for update in bench.step().updates] == [2]


def test_stopping_ends_the_thread_after_the_turn_under_way(bench: Bench) -> None:
    go_on = bench.hold_turn(1000)
    bench.executor.stop(timeout=0.05)
    assert bench.alive()
    go_on.set()
    bench.executor.stop(PATIENCE)
    assert not bench.alive()
    assert bench.reports.qsize() == 1


def test_an_idle_executor_stops_at_once(bench: Bench) -> None:
    assert bench.alive()
    bench.executor.stop(PATIENCE)
    assert not bench.alive() and bench.reports.empty()


class Ruin(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("fault", [RuntimeError, Ruin])
def test_a_fault_in_a_turn_is_the_last_word_and_is_said_once(bench: Bench, fault: type[BaseException]) -> None:
    def fail() -> None:
        if bench.lifecycle.left[0] == 2:
            raise fault("out of luck")

    bench.lifecycle.during_turn = fail
    bench.executor.post(Admit((spec(0, 3),)))
    bench.step()
    assert bench.report() == ExecutorDied(3, f"{fault.__name__}: out of luck")
    bench.executor.post(Admit((spec(1, 1),)))
    bench.executor.stop(PATIENCE)
    assert not bench.alive() and bench.reports.empty()


def test_orders_that_were_not_taken_up_are_given_back(bench: Bench) -> None:
    go_on = bench.hold_turn(9)
    commands = Admit((spec(1),)), Cancel((0,))
    for command in commands:
        bench.executor.post(command)
    assert bench.executor.reclaim() == commands and bench.executor.reclaim() == ()
    bench.executor.post(Stop())
    go_on.set()
    bench.executor.stop(PATIENCE)
    assert bench.lifecycle.noted() == ["admit 0", "turn", "leave store", "leave store"]


def test_a_fault_in_an_order_is_told_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(specs: Iterable[RowSpec], terms: BatchPolicy) -> None:
        raise KeyError("row")

    monkeypatch.setattr(bench.lifecycle, "admit", fail)
    bench.executor.post(Admit((spec(0, 3),)))
    assert bench.report() == ExecutorDied(3, "KeyError: 'row'")
    bench.executor.stop(PATIENCE)
    assert not bench.alive()


def test_what_is_handed_back_is_told_though_nothing_else_is_left_to_do(bench: Bench) -> None:
    bench.executor.post(Admit((spec(0, 1),)))
    bench.step()
    bench.executor.post(Pause((0,)))
    assert bench.step().handed_back == (HandedBack((0,), Cause.PAUSE),)


def test_the_thread_computes_on_its_own_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device is each thread's own: what was captured on another was replayed from the first."""
    chosen: queue.Queue[tuple[str, str]] = queue.Queue()
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: chosen.put((name, threading.current_thread().name)))
    info = replace(bench.executor.info, index=5, device="cuda:1")
    executor = Executor(info, cast(Lifecycle[Row], ScriptedLifecycle()), bench.reports.put)
    executor.start()
    assert chosen.get(timeout=PATIENCE) == ("cuda:1", "executor-5")
    executor.stop(PATIENCE)
    assert chosen.empty(), "nobody else chose"
