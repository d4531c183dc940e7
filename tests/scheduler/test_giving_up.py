"""Executors that stand still: given up like dead ones, and what they say afterwards counts for nothing."""

import asyncio
from dataclasses import replace

import pytest

from engine.messages import Admit, Cancel, Cause, Command, ExecutorDied, ExecutorHealth, FinishReason, HandedBack, Stop
from engine.sampling.params import SamplingParams
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.options import Scheduling
from scheduler.request import Failure, Refused, Request, State
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import FakePort, VirtualClock, admitted, cancelled, port, token

PARAMS = SamplingParams(max_tokens=8)


async def test_its_requests_fail_once_or_start_elsewhere_and_its_late_reports_are_ignored() -> None:
    ports = [port(0, rows=2), port(1, rows=2)]
    limits = BatchLimits(group_tokens=100, prefill_ahead=0)
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], limits), ports, VirtualClock())
    requests = [dispatcher.submit(range(4), PARAMS) for _ in range(4)]
    dispatcher.dispatch()
    (held,) = admitted(ports[0].take())
    begun, fresh = (requests[row_id] for row_id in held)
    dispatcher.receive(ports[0].report(token(begun.row_id, 5)))
    dispatcher.give_up(0, "it has done nothing for 60 s")
    assert ports[0].take() == [Stop()]
    assert (begun.state, begun.failure, fresh.state) == (State.FAILED, Failure.EXECUTOR, State.WAITING)
    dispatcher.receive(ports[0].report(token(begun.row_id, 6), token(fresh.row_id, 6)))
    dispatcher.receive(ExecutorDied(0, "it was its time", salvaged=(begun.row_id,)))
    assert (begun.state, fresh.generated, dispatcher.held_by(0)) == (State.FAILED, 0, 0)
    assert dispatcher.alive
    ended = [update.error async for update in begun.stream]
    assert ended == ["the executor of this request failed"]


class BrokenPort(FakePort):
    """An executor whose letterbox takes nothing from some moment on."""

    broken = False

    def post(self, command: Command) -> None:
        if self.broken:
            raise OSError("the pipe is closed")
        super().post(command)


@pytest.mark.parametrize("what", ["a plan", "a cancellation"])
async def test_an_executor_that_takes_no_command_is_lost_alone(what: str) -> None:
    """One exception of one executor's letterbox ended the requests of all."""
    broken, other = BrokenPort(port(0).info), port(1)
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], BatchLimits(100, 0)), [broken, other], VirtualClock())
    broken.broken = what == "a plan"
    requests = [dispatcher.submit(range(4), PARAMS) for _ in range(4)]
    dispatcher.dispatch()
    broken.broken = True
    if what == "a cancellation":
        gone = next(one for one in requests if one.executor == 0)
        dispatcher.cancel(gone)
        requests.remove(gone)
        assert gone.state is State.CANCELLED
        dispatcher.dispatch()
    assert dispatcher.alive and [one.executor for one in requests] == [1] * len(requests)
    dispatcher.receive(other.report(*(token(one.row_id, 5, end=FinishReason.LENGTH) for one in requests)))
    assert {one.state for one in requests} == {State.FINISHED}


async def test_without_any_executor_that_takes_commands_requests_end_and_nothing_is_taken_in() -> None:
    broken = BrokenPort(port(0).info)
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], BatchLimits(100, 0)), [broken], VirtualClock())
    request, broken.broken = dispatcher.submit(range(4), PARAMS), True
    dispatcher.dispatch()
    assert (request.state, request.failure, dispatcher.alive) == (State.FAILED, Failure.EXECUTOR, False)
    await dispatcher.death()


def paused_and_sent_again() -> tuple[Dispatcher, list[FakePort], Request]:
    """Two executors, and a request that the first handed back after a token and that was then sent to it again."""
    ports = [port(0, rows=1), port(1, rows=1)]
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], BatchLimits(100, 0)), ports, VirtualClock())
    request, _ = (dispatcher.submit(range(4), PARAMS) for _ in range(2))
    dispatcher.dispatch()
    handed_back = HandedBack((request.row_id,), Cause.PAUSE)
    report = replace(ports[0].report(token(request.row_id, 5)), handed_back=(handed_back,))
    dispatcher.receive(report)
    dispatcher.dispatch()
    assert (request.state, request.executor) == (State.ASSIGNED, 0)
    return dispatcher, ports, request


@pytest.mark.parametrize("last_word", [True, False])
def test_a_row_that_it_never_took_up_goes_on_elsewhere(last_word: bool) -> None:
    dispatcher, ports, request = paused_and_sent_again()
    ports[0].untaken = (Admit((request.spec,)),)
    dispatcher.receive(ExecutorDied(0, "fire")) if last_word else dispatcher.give_up(0, "it stands still")
    assert (request.state, request.generated) == (State.WAITING, 1)
    ports[1].take()
    dispatcher.receive(ports[1].report(token(1, 5, end=FinishReason.LENGTH)))
    dispatcher.dispatch()
    assert admitted(ports[1].take()) == [[request.row_id]]


def test_nothing_is_kept_of_a_row_that_fails_with_it() -> None:
    dispatcher, ports, request = paused_and_sent_again()
    dispatcher.receive(ExecutorDied(0, "fire"))
    assert request.state is State.FAILED
    assert cancelled(ports[1].take()) == [request.row_id]


def test_nothing_is_kept_of_a_row_that_it_was_to_drop() -> None:
    dispatcher, ports, request = paused_and_sent_again()
    dispatcher.cancel(request)
    ports[0].untaken = (Admit((request.spec,)), Cancel((request.row_id,)))
    dispatcher.receive(ExecutorDied(0, "fire"))
    assert cancelled(ports[1].take()) == [request.row_id]


@pytest.mark.parametrize("strategy", ["baton-pd", "ils"])
def test_an_executor_whose_device_fails_gets_nothing_until_it_is_well(strategy: str) -> None:
    """The broken one of two executors went on taking calls, and answered each with an error."""
    ports, clock = [port(0, rows=2), port(1, rows=2)], VirtualClock()
    dispatcher = Dispatcher(
        assemble(STRATEGIES[strategy], BatchLimits(100, 0, options=Scheduling(min_interval=1.0))), ports, clock
    )

    def dispatch() -> tuple[list[list[int]], list[list[int]]]:
        for _ in range(4):
            clock.time += 2
            dispatcher.dispatch()
        return admitted(ports[0].take()), admitted(ports[1].take())

    dispatcher.receive(ExecutorHealth(0, "it is on fire"))
    requests = [dispatcher.submit(range(4), PARAMS) for _ in range(2)]
    first, second = dispatch()
    assert not first and sorted(sum(second, [])) == [0, 1]
    dispatcher.receive(ExecutorHealth(1, "so is this"))
    back = HandedBack((0, 1), Cause.FAULT)
    dispatcher.receive(replace(ports[1].report(token(0, 5)), handed_back=(back,)))
    assert dispatch() == ([], []) and len(dispatcher.waiting) == 2
    with pytest.raises(Refused, match="no executor"):
        dispatcher.submit(range(4), PARAMS)
    assert [request.state for request in requests] == [State.WAITING] * 2
    dispatcher.receive(ExecutorHealth(0, None))
    first, second = dispatch()
    assert sorted(sum(first, [])) == [0, 1] and not second and dispatcher.alive


def test_what_waits_for_a_device_to_be_well_fails_when_the_last_is_lost() -> None:
    ports = [port(0), port(1)]
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], BatchLimits(100, 0)), ports, VirtualClock())
    request = dispatcher.submit(range(4), PARAMS)
    for index in (0, 1):
        dispatcher.receive(ExecutorHealth(index, "it is on fire"))
    dispatcher.give_up(0, "too long")
    assert request.state is State.WAITING
    dispatcher.give_up(1, "too long")
    assert (request.state, request.failure) == (State.FAILED, Failure.EXECUTOR)


async def test_with_the_last_executor_the_service_is_dead() -> None:
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], BatchLimits(100, 0)), [port()], VirtualClock())
    death = asyncio.create_task(dispatcher.death())
    await asyncio.sleep(0)
    assert not death.done()
    dispatcher.give_up(0, "it has done nothing for 60 s")
    assert not dispatcher.alive
    await death
