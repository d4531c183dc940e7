"""Executors that stand still: given up like dead ones, and what they say afterwards counts for nothing."""

from dataclasses import dataclass

import pytest

from engine.messages import Admit, Cancel, Cause, Command, ExecutorDied, ExecutorHealth, FinishReason, Stop
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.request import Failure, Refused, Request, State
from tests.scheduler.fakes import FakePort, Stage, cancelled, port, token


async def test_its_requests_fail_once_or_start_elsewhere_and_its_late_reports_are_ignored() -> None:
    stage = Stage(port(0, rows=2), port(1, rows=2))
    requests = [stage.submit() for _ in range(4)]
    (held,) = stage.dispatch()
    begun, fresh = (requests[row_id] for row_id in held)
    stage.report(token(begun.row_id, 5))
    stage.dispatcher.give_up(0, "it has done nothing for 60 s")
    assert stage.ports[0].take() == [Stop()]
    assert (begun.state, begun.failure, fresh.state) == (State.FAILED, Failure.EXECUTOR, State.WAITING)
    stage.report(token(begun.row_id, 6), token(fresh.row_id, 6))
    stage.dispatcher.receive(ExecutorDied(0, "it was its time", salvaged=(begun.row_id,)))
    assert (begun.state, fresh.generated, stage.dispatcher.held_by(0)) == (State.FAILED, 0, 0)
    assert stage.dispatcher.alive
    assert [update.error async for update in begun.stream] == ["the executor of this request failed"]


@dataclass(eq=False)
class BrokenPort(FakePort):
    """An executor whose letterbox takes nothing from some moment on."""

    broken: bool = False

    def post(self, command: Command) -> None:
        if self.broken:
            raise OSError("the pipe is closed")
        super().post(command)


@pytest.mark.parametrize("what", ["a plan", "a cancellation"])
async def test_an_executor_that_takes_no_command_is_lost_alone(what: str) -> None:
    """One exception of one executor's letterbox ended the requests of all."""
    broken = BrokenPort(port(0).info, broken=what == "a plan")
    stage = Stage(broken, port(1))
    dispatcher = stage.dispatcher
    requests = [stage.submit() for _ in range(4)]
    dispatcher.dispatch()
    broken.broken = True
    if what == "a cancellation":
        gone = next(one for one in requests if one.executor == 0)
        dispatcher.cancel(gone)
        requests.remove(gone)
        assert gone.state is State.CANCELLED
        dispatcher.dispatch()
    assert dispatcher.alive and [one.executor for one in requests] == [1] * len(requests)
    stage.report(*(token(one.row_id, 5, end=FinishReason.LENGTH) for one in requests), executor=1)
    assert {one.state for one in requests} == {State.FINISHED}


async def test_without_any_executor_that_takes_commands_requests_end_and_nothing_is_taken_in() -> None:
    stage = Stage(BrokenPort(port(0).info, broken=True))
    request = stage.submit()
    stage.dispatcher.dispatch()
    assert (request.state, request.failure, stage.dispatcher.alive) == (State.FAILED, Failure.EXECUTOR, False)
    await stage.dispatcher.death()


def paused_and_sent_again() -> tuple[Stage, Request]:
    """Two executors, and a request that the first handed back after a token and that was then sent to it again."""
    stage = Stage(port(0, rows=1), port(1, rows=1))
    request, _ = (stage.submit() for _ in range(2))
    stage.dispatch()
    stage.report(token(request.row_id, 5))
    stage.hand_back(Cause.PAUSE, request.row_id)
    stage.dispatcher.dispatch()
    assert (request.state, request.executor) == (State.ASSIGNED, 0)
    return stage, request


@pytest.mark.parametrize("last_word", [True, False])
def test_a_row_that_it_never_took_up_goes_on_elsewhere(last_word: bool) -> None:
    stage, request = paused_and_sent_again()
    stage.ports[0].untaken = (Admit((request.spec,)),)
    if last_word:
        stage.dispatcher.receive(ExecutorDied(0, "fire"))
    else:
        stage.dispatcher.give_up(0, "it stands still")
    assert (request.state, request.generated) == (State.WAITING, 1)
    stage.ports[1].take()
    stage.report(token(1, 5, end=FinishReason.LENGTH), executor=1)
    assert stage.dispatch(1) == [[request.row_id]]


@pytest.mark.parametrize("dropped", [False, True], ids=["fails with it", "was to be dropped by it"])
def test_nothing_is_kept_of_a_row_that_ends_with_it(dropped: bool) -> None:
    stage, request = paused_and_sent_again()
    if dropped:
        stage.dispatcher.cancel(request)
        stage.ports[0].untaken = (Admit((request.spec,)), Cancel((request.row_id,)))
    stage.dispatcher.receive(ExecutorDied(0, "fire"))
    assert request.state is (State.CANCELLED if dropped else State.FAILED)
    assert cancelled(stage.ports[1].take()) == [request.row_id]


@pytest.mark.parametrize("strategy", ["baton-pd", "ils"])
def test_an_executor_whose_device_fails_gets_nothing_until_it_is_well(strategy: str) -> None:
    """The broken one of two executors went on taking calls, and answered each with an error."""
    limits = BatchLimits(100, 0, options=Scheduling(min_interval=1.0))
    stage = Stage(port(0, rows=2), port(1, rows=2), strategy=strategy, limits=limits)
    dispatcher = stage.dispatcher

    def dispatch() -> tuple[list[list[int]], list[list[int]]]:
        for _ in range(4):
            stage.clock.time += 2
            dispatcher.dispatch()
        return stage.dispatch(0), stage.dispatch(1)

    dispatcher.receive(ExecutorHealth(0, "it is on fire"))
    requests = [stage.submit() for _ in range(2)]
    first, second = dispatch()
    assert not first and sorted(sum(second, [])) == [0, 1]
    dispatcher.receive(ExecutorHealth(1, "so is this"))
    stage.report(token(0, 5), executor=1)
    stage.hand_back(Cause.FAULT, 0, 1, executor=1)
    assert dispatch() == ([], []) and len(dispatcher.waiting) == 2
    with pytest.raises(Refused, match="no executor"):
        stage.submit()
    assert [request.state for request in requests] == [State.WAITING] * 2
    dispatcher.receive(ExecutorHealth(0, None))
    first, second = dispatch()
    assert sorted(sum(first, [])) == [0, 1] and not second and dispatcher.alive


def test_what_waits_for_a_device_to_be_well_fails_when_the_last_is_lost() -> None:
    stage = Stage(port(0), port(1))
    request = stage.submit()
    for index in (0, 1):
        stage.dispatcher.receive(ExecutorHealth(index, "it is on fire"))
    stage.dispatcher.give_up(0, "too long")
    assert request.state is State.WAITING
    stage.dispatcher.give_up(1, "too long")
    assert (request.state, request.failure) == (State.FAILED, Failure.EXECUTOR)
