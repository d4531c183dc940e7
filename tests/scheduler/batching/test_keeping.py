"""K and V of rows that are handed back: whose are kept, and what that changes for those who decide."""

from dataclasses import replace

import pytest

from engine.messages import Admit, Cause, ExecutorDied
from engine.simulated.machine import Machine
from loadgen.simulate.simulation import fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import Stage, port, token

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=0, options=Scheduling(slice_length=4, min_interval=0.0))
MODEL = Bilinear(p1=0.5, p2=0.25, p3=0.0, p4=8.0, d1=0.0, d2=0.0, d3=0.0, d4=1.0, c1=0.25, c0=3.0)
"""So that 11 tokens are worth keeping: 0.25·11 + 3 = 0.5·11 + 0.25."""


class Trio(Stage):
    """A dispatcher with two executors, of which one was sent two requests of 4 tokens and one of 2."""

    def __init__(self, strategy: str = "scls") -> None:
        super().__init__(port(0, capacity=5000), port(1, capacity=5000), strategy=strategy, limits=LIMITS, prices=MODEL)
        self.requests = [self.submit(length, most=50) for length in (4, 4, 2)]
        self.dispatcher.dispatch()
        self.report(*(token(one.row_id, *range(5)) for one in self.requests))

    def hand_back_all(self, cause: Cause, *dropped: int) -> None:
        self.hand_back(cause, *(one.row_id for one in self.requests), dropped=dropped)


def needing_prefill(requests: list[Request]) -> list[int]:
    return [one.row_id for one in requests if one.needs_prefill]


@pytest.mark.parametrize("cause", [Cause.SLICE, Cause.PAUSE])
def test_rows_without_k_and_v_are_read_again_once(cause: Cause) -> None:
    stage = Trio()
    assert needing_prefill(stage.requests) == []
    stage.hand_back_all(cause, 2)
    assert needing_prefill(stage.requests) == [2]
    stage.dispatcher.dispatch()
    assert needing_prefill(stage.requests) == [], "that is up to the executor now"
    stage.hand_back_all(cause)
    assert needing_prefill(stage.requests) == []


STARTS = [
    ((), 3 * 3 + 0.25 * (9 + 9 + 7)),
    ((2,), 2 * 3 + 0.25 * (9 + 9) + MODEL.prefill(1, 7)),
    ((0, 1, 2), MODEL.prefill(3, 9)),
]


@pytest.mark.parametrize(("dropped", "start"), STARTS)
def test_the_next_slice_is_estimated_by_what_was_kept(dropped: tuple[int, ...], start: float) -> None:
    """Two rows of 9 tokens, one of 7, and 4 iterations."""
    stage = Trio()
    stage.hand_back_all(Cause.SLICE, *dropped)
    stage.dispatcher.dispatch()
    assert [worker.load for worker in stage.dispatcher.workers] == [pytest.approx(start + 4.0), 0.0]


def test_what_a_dead_executor_had_in_host_memory_is_not_read_again() -> None:
    stage = Trio()
    stage.dispatcher.receive(ExecutorDied(0, "it broke", salvaged=(0, 1, 2)))
    assert set(stage.dispatcher.waiting) == set(stage.requests) and needing_prefill(stage.requests) == []


def test_an_executor_is_told_which_rows_are_worth_keeping() -> None:
    for name in ("scls", "so", "lengthwise", "baton-pd", "magnus"):
        orders = Trio(name).ports[0].take()
        told = {order.terms.kept_from for order in orders if isinstance(order, Admit)}
        assert told == {11}


def served(recompute: bool, model: Bilinear) -> tuple[float, int]:
    """Seconds that two requests take in slices of 4, and how many tokens are read."""
    machine = Machine(model, capacity_tokens=1000, max_num_seqs=4, context_length=500)
    limits = replace(LIMITS, options=replace(LIMITS.options, recompute=recompute))
    trace = [RequestLengths(0.0, 2, 9), RequestLengths(0.0, 2, 13)]
    done = simulate(fit_parts(STRATEGIES["scls"], limits, machine, model), machine, trace, 50)
    return done.duration, sum(worker.tally.prompt for worker in done.workers)


def test_what_is_kept_and_what_is_read_again_by_hand() -> None:
    """Both have 7 tokens after the first slice, too few, and are read again, which makes a token of the next slice: so
    one ends with the 9th token there, at 4 + 1 + 4 iterations. The other has 12 tokens then, which are kept, unless
    nobody wants copies. Where they cost nothing all are made, and slices end with 5, 9 and 13 tokens of the answers."""
    first, second = MODEL.prefill(2, 2) + 4, MODEL.prefill(2, 7) + 4
    assert served(False, MODEL) == pytest.approx((first + second + MODEL.copy(11) + 3, 2 * 2 + 2 * 7))
    assert served(False, replace(MODEL, c1=0.0, c0=0.0)) == pytest.approx((MODEL.prefill(2, 2) + 12, 2 * 2))
    assert served(True, MODEL) == pytest.approx((first + second + MODEL.prefill(1, 12) + 2, 2 * 2 + 2 * 7 + 12))
