"""Which requests are sent together: in numbers first, then the bounds that no choice may break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Admit, Cause
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.continuous import ContinuousBatcher, similar_group
from scheduler.plan import Plan
from scheduler.request import BACKGROUND, Request
from scheduler.strategy import SHAPE
from tests.scheduler.fakes import kit, request, worker

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=2)


def group(lengths: list[int], *, held: list[int] | None = None, capacity: int = 1000) -> list[int]:
    """The input lengths that are taken out of those that wait, best first."""
    ranked = [request(row_id, length) for row_id, length in enumerate(lengths)]
    busy = worker(*(request(100 + row_id, length) for row_id, length in enumerate(held or [])), capacity=capacity)
    parts = kit(LIMITS)
    taken = similar_group(ranked, parts.memory.beside(busy), parts, len(ranked), LIMITS.max_padding)
    return [one.input_length for one in taken]


SIMILAR = [
    ([], []),
    ([7], [7]),
    ([10, 10, 9], [10, 10, 9]),
    ([10, 1, 9], [10, 9]),  # 2 x 10 cells, 9 of them padding, is more than a quarter
    ([10, 5], [10, 5]),  # 5 of 20 is just a quarter
    ([10, 4, 10], [10, 10]),
    ([10, 10, 3, 3], [10, 10, 3]),  # 7 of 30; with the other, 14 of 40
    ([4, 20, 4], [4, 4]),  # one that is much longer would pad the best
    ([25, 25, 25, 25, 25], [25, 25, 25, 25]),  # 100 tokens a group
    ([26, 26, 26, 26], [26, 26, 26]),
    ([150, 150], [150]),  # a longer one goes alone
]


@pytest.mark.parametrize(("lengths", "taken"), SIMILAR)
def test_a_group_is_the_best_request_and_those_of_similar_length(lengths: list[int], taken: list[int]) -> None:
    assert group(lengths) == taken


FITTING = [
    ([], [40, 40, 40], [40, 40]),  # 2 x 41 columns of 100
    ([], [99], [99]),
    ([], [500], [500]),  # one that never fits must not wait for ever; admission refuses it before
    ([30], [60, 10], []),  # the short one would fit, but nobody overtakes the best
    ([30], [10, 60, 10], [10]),
    ([20, 20, 20], [20, 20], [20]),
]


@pytest.mark.parametrize(("held", "lengths", "taken"), FITTING)
def test_a_group_fits_and_the_best_is_not_passed_over(held: list[int], lengths: list[int], taken: list[int]) -> None:
    assert group(lengths, held=held, capacity=100) == taken


def batcher_of(*requests: Request, limits: BatchLimits = LIMITS) -> ContinuousBatcher:
    batcher = ContinuousBatcher(kit(limits))
    for one in requests:
        batcher.add(one, 0.0)
    return batcher


def test_a_plan_is_one_order_for_rows_in_rank() -> None:
    late, early = request(0, arrival=2.0), request(1, arrival=1.0)
    batcher = batcher_of(late, early)
    plan = batcher.take(worker(), now=3.0)
    assert plan == Plan((early, late))
    assert plan.command == Admit((early.spec, late.spec))
    assert len(batcher.waiting) == 0 and batcher.take(worker(), now=3.0) is None


def test_no_more_is_sent_than_slots_and_some_ahead() -> None:
    """Four slots and two ahead, of which three are taken."""
    batcher = batcher_of(*(request(row_id) for row_id in range(9)))
    held = [request(100 + row_id) for row_id in range(3)]
    plan = batcher.take(worker(*held, rows=4), now=0.0)
    assert plan is not None and [one.row_id for one in plan.requests] == [0, 1, 2]
    assert batcher.take(worker(*held, *plan.requests, rows=4), now=0.0) is None
    assert len(batcher.waiting) == 6


def test_background_requests_are_taken_as_many_together_as_may_wait() -> None:
    """They were taken one by one, and each prompt that is read alone takes a step from all that run."""
    patients = [request(row_id, length, priority=BACKGROUND) for row_id, length in enumerate([9, 50, 10, 50, 9])]
    held = [request(100 + row_id, priority=BACKGROUND) for row_id in range(5)]
    batcher = batcher_of(*patients)
    assert batcher.take(worker(*held), now=0.0) is None, "of two rows that may wait there is one"
    taken = [batcher.take(worker(*held[:most]), now=0.0) for most in (4, 4, 5, 5)]
    assert [plan and [one.row_id for one in plan.requests] for plan in taken] == [[0, 2], [1, 3], [4], None]


def test_a_discarded_request_is_not_taken() -> None:
    one, other = request(0), request(1)
    batcher = batcher_of(one, other)
    assert batcher.discard(one) and not batcher.discard(one)
    assert batcher.take(worker(), now=0.0) == Plan((other,))
    assert batcher.wake_at(now=0.0) is None


@given(
    lengths=st.lists(st.integers(1, 60), max_size=20),
    held=st.lists(st.integers(1, 60), max_size=5),
    capacity=st.integers(60, 600),
    rows=st.integers(1, 8),
    limits=st.builds(
        BatchLimits, group_tokens=st.integers(1, 200), prefill_ahead=st.integers(0, 4), max_padding=st.floats(0, 1)
    ),
)
def test_no_bound_is_broken(lengths: list[int], held: list[int], capacity: int, rows: int, limits: BatchLimits) -> None:
    requests = [request(row_id, length) for row_id, length in enumerate(lengths)]
    busy = worker(*(request(100 + place, length) for place, length in enumerate(held)), capacity=capacity, rows=rows)
    batcher = batcher_of(*requests, limits=limits)
    plan = batcher.take(busy, now=0.0)
    taken = list(plan.requests) if plan is not None else []
    assert [one for one in requests if one not in taken] == list(batcher.waiting)
    assert plan is None or len(plan.requests) > 0
    assert len(held) + len(taken) <= max(rows + limits.prefill_ahead, len(held))
    assert taken == sorted(taken, key=lambda one: one.row_id) and taken[:1] in ([], requests[:1])
    widths = [one.input_length for one in taken]
    if len(taken) > 1:
        cells = len(taken) * max(widths)
        assert cells <= limits.group_tokens and cells - sum(widths) <= limits.max_padding * cells
    if taken and held:
        assert (len(held) + len(taken)) * (max(*held, *widths) + 1) <= capacity
    elif len(taken) > 1:
        assert len(taken) * (max(widths) + 1) <= capacity


@given(length=st.integers(1, 1000), others=st.lists(st.integers(1, 1000), max_size=5))
def test_an_idle_executor_is_always_given_the_best(length: int, others: list[int]) -> None:
    assert group([length, *others], capacity=100)[0] == length


def test_nothing_is_read_ahead_behind_rows_that_make_way_for_it() -> None:
    waiting = request(0, priority=0)
    worse = [request(100 + row_id, priority=1) for row_id in range(4)]
    assert batcher_of(waiting).take(worker(*worse, rows=4), now=0.0) is None
    for others, rows in ((worse, 5), ([request(100 + row_id) for row_id in range(4)], 4)):
        plan = batcher_of(waiting).take(worker(*others, rows=rows), now=0.0)
        assert plan is not None and plan.requests == (waiting,)


def test_requests_that_enter_with_their_prompts_need_a_slot_and_no_similar_length() -> None:
    batcher = ContinuousBatcher(kit(LIMITS, terms=SHAPE))
    for row_id, length in enumerate([2, 40, 3]):
        batcher.add(request(row_id, length), 0.0)
    plan = batcher.take(worker(request(100), rows=3), now=0.0)
    assert plan is not None and [one.row_id for one in plan.requests] == [0, 1]
    assert plan.terms is SHAPE


def test_what_is_handed_back_waits_again_in_its_place() -> None:
    early, late = request(0, arrival=1.0), request(1, arrival=2.0)
    batcher = batcher_of(late)
    batcher.hand_back([early], Cause.PAUSE, now=3.0)
    assert batcher.take(worker(), now=3.0) == Plan((early, late))
