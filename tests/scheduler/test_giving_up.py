"""Executors that stand still: given up like dead ones, and what they say afterwards counts for nothing."""

from __future__ import annotations

import asyncio

from engine.messages import ExecutorDied, SamplingParams, Stop
from scheduler.assembly import assemble
from scheduler.batching import Limits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Failure, State
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import VirtualClock, admitted, port, token

PARAMS = SamplingParams(max_tokens=8)


async def test_its_requests_fail_once_or_start_elsewhere_and_its_late_reports_are_ignored() -> None:
    ports = [port(0, rows=2), port(1, rows=2)]
    limits = Limits(group_tokens=100, prefill_ahead=0)
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


async def test_with_the_last_executor_the_service_is_dead() -> None:
    dispatcher = Dispatcher(assemble(STRATEGIES["baton-pd"], Limits(100, 0)), [port()], VirtualClock())
    death = asyncio.create_task(dispatcher.death())
    await asyncio.sleep(0)
    assert not death.done()
    dispatcher.give_up(0, "it has done nothing for 60 s")
    assert not dispatcher.alive
    await asyncio.wait_for(death, 20)
