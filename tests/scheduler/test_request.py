"""The life of a request: which moves are legal, and what is booked."""

import pytest

from scheduler.request import IllegalTransition, State
from tests.scheduler.fakes import request

LEGAL = {
    "waiting": {"assigned", "cancelled", "failed"},
    "assigned": {"running", "waiting", "finished", "cancelled", "failed"},
    "running": {"waiting", "finished", "cancelled", "failed"},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", State)
def test_a_legal_move_is_made_and_any_other_is_refused(state: State, move: State) -> None:
    one, legal = request(), LEGAL.get(state.value, set())
    one.state = state
    if move.value in legal:
        one.move(move)
        assert one.state is move
    else:
        with pytest.raises(IllegalTransition, match=f"from {state} to {move}"):
            one.move(move)
        assert one.state is state and state.is_final is not bool(legal)
