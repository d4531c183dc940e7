"""The life of a request: which moves are legal, and what is booked."""

import pytest

from engine.messages import RowSpec
from scheduler.request import IllegalTransition, State
from tests.scheduler.fakes import request

LEGAL = {
    "waiting": {"assigned", "cancelled", "failed"},
    "assigned": {"running", "waiting", "finished", "cancelled", "failed"},
    "running": {"waiting", "finished", "cancelled", "failed"},
    "finished": set[str](),
    "cancelled": set[str](),
    "failed": set[str](),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", State)
def test_a_legal_move_is_made_and_any_other_is_refused(state: State, move: State) -> None:
    one = request()
    one.state = state
    if move.value in LEGAL[state.value]:
        one.move(move)
        assert one.state is move
    else:
        with pytest.raises(IllegalTransition, match=f"from {state} to {move}"):
            one.move(move)
        assert one.state is state and state.is_final is not bool(LEGAL[state.value])


def test_a_request_becomes_the_row_that_an_executor_is_sent() -> None:
    one = request(7, length=3)
    assert one.spec == RowSpec(7, (0, 1, 2), one.sampling)
    assert (one.input_length, one.tokens) == (3, 3)
