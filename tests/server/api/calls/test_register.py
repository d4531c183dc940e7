"""The register by itself: what it remembers, and that it forgets."""

from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request, State
from scheduler.strategy import STRATEGIES
from server.api.register import Record, Register
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
