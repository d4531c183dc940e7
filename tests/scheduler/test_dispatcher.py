"""The loop that decides, on a clock and executors that the test plays."""

import asyncio
from dataclasses import replace

import pytest

from engine.messages import Admit, ExecutorDied, ExecutorHealth, FinishReason, RowUpdate
from scheduler.clock import MonotonicClock
from scheduler.request import Refused, Request, State
from tests.scheduler.fakes import Stage, admitted, cancelled, port, token

STOP = FinishReason.STOP


def counts(stage: Stage) -> tuple[int, int]:
    return stage.dispatcher.table.requests_waiting, stage.dispatcher.table.requests_running


async def last(request: Request) -> RowUpdate:
    return [update async for update in request.stream][-1]


def test_a_request_waits_is_assigned_runs_and_finishes() -> None:
    stage = Stage()
    one = stage.submit(length=3)
    assert (one.state, counts(stage)) == (State.WAITING, (1, 0))
    stage.clock.time = 1.0
    stage.dispatcher.dispatch()
    assert stage.ports[0].take() == [Admit((one.spec,))]
    assert (one.state, one.executor, counts(stage)) == (State.ASSIGNED, 0, (1, 0))
    stage.report(token(one.row_id, 5), now=2.0)
    assert (one.state, one.tokens, counts(stage)) == (State.RUNNING, 4, (0, 1))
    stage.report(token(one.row_id, 6), token(one.row_id, 7, end=STOP), now=3.0)
    assert (one.state, one.executor, one.generated, counts(stage)) == (State.FINISHED, None, 3, (0, 0))
    times = one.times
    assert (times.arrival, times.assigned, times.first_token, times.end) == (0.0, 1.0, 2.0, 3.0)


def test_waiting_ends_when_prefill_begins_and_not_when_the_executor_is_told() -> None:
    """It used to end on assignment, so that seconds in an executor's own queue counted for none."""
    stage = Stage()
    one = stage.submit()
    assert stage.dispatch() == [[one.row_id]]
    stage.clock.time = 5.0
    assert (one.state, counts(stage)) == (State.ASSIGNED, (1, 0))
    stage.dispatcher.receive(replace(stage.ports[0].report(), seconds=0.5, begun=(one.row_id,)))
    assert (one.state, counts(stage), one.times.started) == (State.RUNNING, (0, 1), 4.5)


# Cancellation


ENDS = {State.RUNNING: None, State.FINISHED: STOP, State.FAILED: FinishReason.ERROR}


@pytest.mark.parametrize("state", State)
def test_cancelling_tells_the_executor_exactly_when_it_holds_the_row(state: State) -> None:
    stage = Stage()
    one, mate = stage.submit(), stage.submit()
    if state is not State.WAITING:
        stage.dispatch()
    if state is State.CANCELLED:
        stage.dispatcher.cancel(one)
        stage.ports[0].take()
    elif state in ENDS:
        stage.report(token(one.row_id, 5, end=ENDS[state]))
    assert one.state is state
    stage.dispatcher.cancel(one)
    assert cancelled(stage.ports[0].take()) == ([one.row_id] if state in (State.ASSIGNED, State.RUNNING) else [])
    assert one.state is (state if state.is_final else State.CANCELLED)
    assert sum(counts(stage)) == 1 and not mate.state.is_final


def test_a_cancelled_row_makes_room_at_once_and_its_late_updates_are_dropped() -> None:
    stage = Stage(port(rows=1))
    one, other = stage.submit(), stage.submit()
    assert stage.dispatch() == [[one.row_id]]
    stage.dispatcher.cancel(one)
    assert stage.dispatch() == [[other.row_id]]
    stage.report(token(one.row_id, 5), token(one.row_id, 6, end=STOP))
    assert (one.generated, one.state) == (0, State.CANCELLED)


# Executors that die


async def test_the_death_of_an_executor_moves_untouched_requests_and_fails_those_that_had_begun() -> None:
    stage = Stage(port(0), port(1, rows=1))
    begun, untouched = stage.submit(), stage.submit()
    assert stage.dispatch() == [[0, 1]]
    stage.report(token(begun.row_id, 5))
    stage.ports[0].alive = False
    stage.dispatcher.receive(ExecutorDied(0, "RuntimeError: fire"))
    assert (begun.state, untouched.state, untouched.executor) == (State.FAILED, State.WAITING, None)
    failed = await last(begun)
    assert (failed.finish_reason, failed.token_ids) == (FinishReason.ERROR, (5,))
    assert failed.error and "fire" not in failed.error
    stage.dispatcher.dispatch()
    assert admitted(stage.ports[1].take()) == [[untouched.row_id]] and stage.ports[0].take() == []
    stage.report(token(untouched.row_id, 5))  # the dead one's last report was under way
    assert untouched.generated == 0
    stage.report(token(untouched.row_id, 6, end=STOP), executor=1)
    assert untouched.state is State.FINISHED


async def test_when_the_last_executor_dies_all_fail_and_new_requests_are_refused() -> None:
    stage = Stage(port(rows=1))
    requests = [stage.submit(), stage.submit()]
    stage.dispatch()
    stage.dispatcher.receive(ExecutorDied(0, "gone"))
    assert [one.state for one in requests] == [State.FAILED] * 2
    assert {(await last(one)).finish_reason for one in requests} == {FinishReason.ERROR}
    assert not stage.dispatcher.alive and counts(stage) == (0, 0)
    with pytest.raises(Refused, match="no executor"):
        stage.submit()


def test_a_patient_dispatcher_takes_requests_while_its_only_executor_has_a_fault() -> None:
    stage = Stage(patient=True)
    stage.dispatcher.receive(ExecutorHealth(0, "it restarts"))
    one = stage.submit()
    assert (stage.dispatch(), one.state) == ([], State.WAITING)
    assert stage.dispatcher.accepts and not stage.dispatcher.alive
    stage.dispatcher.receive(ExecutorHealth(0, None))
    assert stage.dispatch() == [[one.row_id]]
    stage.dispatcher.receive(ExecutorDied(0, "gone"))
    with pytest.raises(Refused, match="no executor"):
        stage.submit()


# The end


async def test_draining_refuses_new_requests_and_waits_also_for_those_that_an_executors_death_put_back() -> None:
    """The failure of the one that had begun, the only other, used to pass for the end of all."""
    stage = Stage(port(0), port(1))
    begun, untouched = stage.submit(), stage.submit()
    stage.dispatch()
    draining = asyncio.create_task(stage.dispatcher.drain())
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="shutting down"):
        stage.submit()
    stage.report(token(begun.row_id, 5))
    stage.dispatcher.receive(ExecutorDied(0, "gone"))
    await asyncio.sleep(0)
    assert not draining.done()
    stage.dispatcher.dispatch()
    stage.report(token(untouched.row_id, 5, end=STOP), executor=1)
    await draining


async def test_aborting_ends_all_with_an_error_and_frees_the_rows() -> None:
    stage = Stage(port(rows=1))
    requests = [stage.submit(), stage.submit()]
    stage.dispatch()
    stage.dispatcher.abort_all("the server stops")
    assert [(await last(one)).error for one in requests] == ["the server stops"] * 2
    assert cancelled(stage.ports[0].take()) == [0] and counts(stage) == (0, 0)
    await stage.dispatcher.drain()


def test_a_better_prediction_puts_a_waiting_request_elsewhere_and_is_kept_by_others() -> None:
    stage = Stage(port(rows=1), strategy="ssjf-continuous")
    running = stage.submit()
    assert stage.dispatch() == [[running.row_id]]
    slow, quick = (stage.submit(predicted_length=length) for length in (3.0, 2.0))
    stage.dispatcher.revise(slow, 1.0)
    assert (slow.predicted_length, stage.dispatcher.table.tokens_waiting) == (1.0, 4 + 1 + 4 + 2)
    stage.dispatcher.revise(running, 5.0)
    assert (running.predicted_length, stage.dispatcher.table.tokens_waiting) == (5.0, 11)
    stage.report(token(running.row_id, 7, end=STOP))
    assert stage.dispatch() == [[slow.row_id]]
    assert quick.state is State.WAITING


# The machine's own time


async def test_waiting_ends_with_the_event_however_late_the_moment() -> None:
    clock, event = MonotonicClock(), asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await clock.wait(event, clock.now() + 3600)
    await clock.wait(event, None)


async def test_waiting_ends_at_the_moment_when_nothing_happens() -> None:
    clock, event = MonotonicClock(), asyncio.Event()
    for delay in (0.01, 0.0, -5.0):
        until = clock.now() + delay
        await clock.wait(event, until)
        assert clock.now() > until - 1e-3 and not event.is_set()
