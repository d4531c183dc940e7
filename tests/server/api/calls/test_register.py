"""The register by itself: what it remembers, and that it forgets."""

import pytest

from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from server.api.errors import ApiError
from server.api.register import Record, Register
from server.api.request_status import CallState
from tests.scheduler.fakes import VirtualClock, request


def idle() -> Dispatcher:
    """A dispatcher with no executor and nothing in its queue."""
    parts = assemble(STRATEGIES["baton-pd"], BatchLimits(group_tokens=1, prefill_ahead=0))
    return Dispatcher(parts, (), VirtualClock(10.0))


def record(name: str, *requests: Request, holder: str | None = None, request_id: str = "") -> Record:
    return Record(name, holder, request_id or f"x-{name}", "/v1/x", "m", False, 1.0, requests, created=0)


def finished() -> Request:
    one = request()
    one.move(State.ASSIGNED)
    one.move(State.FINISHED)
    return one


def known(register: Register, name: str) -> str | None:
    """The id of the call of this name."""
    status = register.status(name, None)
    return None if status is None else status.id


def test_it_forgets_the_oldest_and_its_names() -> None:
    register = Register(idle(), history=2)
    for name in "abc":
        with register.enter(record(name, finished())):
            assert len(register) == 1
    assert [status.id for status in register.iter_latest(None, 10)] == ["c", "b"]
    assert [known(register, name) for name in ("a", "x-a", "x-b")] == [None, None, "b"]


def test_a_call_may_end_while_a_list_is_made() -> None:
    register = Register(idle())
    with register.enter(record("b", finished())), register.enter(record("a", request())):
        listed = register.iter_latest(None, 10)
        assert next(listed).id == "a"
    assert [status.id for status in listed] == ["b"]


def test_a_name_that_was_used_again_means_the_latest_also_when_the_first_is_forgotten() -> None:
    register = Register(idle(), history=1)
    with register.enter(record("a", finished(), request_id="same")):
        pass
    with register.enter(record("b", finished(), request_id="same")):
        assert known(register, "same") == "b"
    assert known(register, "same") == "b"


def test_what_is_cancelled_says_so_to_its_handler_and_its_reader() -> None:
    register, waiting, done = Register(idle()), request(), finished()
    with register.enter(record("a", waiting, done)) as call:
        call.check()
        status = register.cancel("a", None)
        assert status is not None and status.state is CallState.CANCELLED
        assert (waiting.state, done.state) == (State.CANCELLED, State.FINISHED)
        with pytest.raises(ApiError) as told:
            call.check()
        assert told.value.status == 499
    with register.enter(record("b", done)) as call:  # whose answers are all there
        status = register.cancel("b", None)
        assert status is not None and status.state is CallState.FINISHED
        call.check()
