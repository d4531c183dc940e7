"""A slot that is kept for a client who comes back at once, beside another whose calls always wait."""

from dataclasses import replace
from typing import Self

from engine.messages import FinishReason
from scheduler.request import Request
from scheduler.waiting.returning import PATIENCE
from tests.scheduler import fakes
from tests.scheduler.fakes import FakePort, port, token

STOP = FinishReason.STOP
ANSWER = 10.0
"""Seconds of an answer."""


class Stage(fakes.Stage):
    """An executor of two slots that shares them out, and of which one client has always taken all that is free."""

    def __init__(self, *ports: FakePort) -> None:
        super().__init__(*(ports or (port(rows=2),)), limits=replace(fakes.ONE_AT_A_TIME, shares={}))
        for _ in range(30):
            self.submit(client="heavy")

    def sent(self, executor: int = 0) -> int:
        """Rows that an executor is sent now."""
        return sum(map(len, self.dispatch(executor)))

    def serve(self, request: Request, executor: int = 0) -> None:
        """A request is answered, ANSWER seconds after it began; meanwhile the other slot is taken anew."""
        self.report(token(request.row_id, 5), executor=executor)
        others = [one for one in self.dispatcher.table.held if one.executor == executor and one is not request]
        ends = (token(one.row_id, 5, end=STOP) for one in others)
        self.report(*ends, executor=executor, now=self.clock.time + ANSWER)
        self.dispatch(executor)
        self.report(token(request.row_id, 5, end=STOP), executor=executor)

    def serve_light(self, *, after: float, priority: int = 0) -> Request:
        """A call of the light client, so long after its last, is the next to run and is answered."""
        self.clock.time += after
        light = self.submit(client="light", priority=priority)
        while light.executor is None:
            self.serve(next(one for one in self.dispatcher.table.held if one.client == "heavy"))
            self.sent()
        self.serve(light)
        return light

    def with_light(self) -> Self:
        """Whose light client was served once."""
        self.sent()
        self.serve_light(after=0.0)
        return self


def test_a_slot_is_kept_for_a_client_that_was_back_in_time_the_last_time() -> None:
    stage = Stage().with_light()
    assert stage.sent() == 1  # it may never come again
    stage.serve_light(after=PATIENCE * ANSWER - 0.1)
    assert stage.sent() == 0
    light = stage.submit(client="light")
    assert stage.sent() == 1 and light.executor == 0


def test_it_is_kept_for_a_tenth_of_the_answers_time_and_only_for_who_was_back_by_then() -> None:
    stage = Stage().with_light()
    stage.sent()
    stage.serve_light(after=0.5)
    ended = stage.clock.now()
    assert stage.sent() == 0 and stage.dispatcher.wake_at() == ended + PATIENCE * ANSWER
    stage.clock.time = ended + PATIENCE * ANSWER
    assert stage.dispatcher.wake_at() is None  # else the loop would spin while no executor can be asked
    assert stage.sent() == 1 and stage.dispatcher.wake_at() is None
    stage.serve_light(after=5.0)
    assert stage.sent() == 1


def test_no_slot_is_kept_for_requests_of_worse_priority() -> None:
    stage = Stage()
    stage.sent()
    for _ in range(2):
        stage.serve_light(after=0.0, priority=-1)
    assert stage.sent() == 0
    stage = Stage()
    for request in list(stage.dispatcher.waiting):
        stage.dispatcher.cancel(request)
    for _ in range(2):
        light = stage.submit(client="light", priority=1)
        stage.sent()
        stage.serve(light)
    stage.submit(client="heavy", priority=1)
    assert stage.sent() == 1


def test_none_is_kept_while_another_call_of_the_client_is_here() -> None:
    stage = Stage().with_light()
    stage.sent()
    stage.submit(client="light", priority=5)  # it waits for all others
    stage.serve_light(after=0.0)
    assert stage.sent() == 1


def test_the_other_executors_keep_none() -> None:
    stage = Stage(port(0, rows=2), port(1, rows=2)).with_light()
    stage.sent()
    light = stage.serve_light(after=0.0)
    assert stage.sent() == 0
    held = [one for one in stage.dispatcher.table.held if one.executor == 1]
    assert len(held) == 2 and light.times.end is not None
    stage.serve(held[0], executor=1)
    stage.clock.time = light.times.end
    assert stage.sent(executor=1) == 1


def test_clients_that_left_are_forgotten() -> None:
    stage = Stage()
    for one in range(50):
        stage.dispatcher.cancel(stage.submit(client=f"client {one}"))
    stage.sent()
    batcher = stage.dispatcher._parts.batcher  # nothing else tells
    assert set(batcher._returning._clients) == {"heavy"}  # type: ignore[attr-defined]
