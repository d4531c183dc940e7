"""Which requests are sent together: in numbers first, then the bounds that no choice may break."""

import pytest
from hypothesis import given, strategies as st

from engine.messages import Admit, BatchPolicy, Cause
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.continuous import ContinuousBatcher, similar_group
from scheduler.plan import Plan
from scheduler.request import BACKGROUND, Request
from scheduler.strategy import SHAPE
from tests.scheduler.fakes import filled, kit, request, requests, rows_of, worker

LIMITS, JOINED = BatchLimits(group_tokens=100, prefill_ahead=2), BatchPolicy()


def group(lengths: list[int], *, held: list[int] | None = None, capacity: int = 1000) -> list[int]:
    """The input lengths that are taken out of those that wait, best first."""
    ranked, busy, parts = requests(*lengths), worker(*requests(*held or []), capacity=capacity), kit(LIMITS)
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


def batcher_of(*waiting: Request, limits: BatchLimits = LIMITS, terms: BatchPolicy = JOINED) -> ContinuousBatcher:
    return filled(ContinuousBatcher(kit(limits, terms=terms)), waiting)


def of_priority(priority: int, count: int = 4) -> list[Request]:
    return [request(100 + row_id, priority=priority) for row_id in range(count)]


def test_a_plan_is_one_order_for_rows_in_rank_without_what_was_discarded_and_with_what_was_handed_back() -> None:
    late, early, gone, back = (request(row_id, arrival=2.0 - row_id) for row_id in range(4))
    batcher = batcher_of(late, early, gone)
    assert batcher.discard(gone) and not batcher.discard(gone)
    batcher.hand_back([back], Cause.PAUSE, now=3.0)
    plan = batcher.take(worker(), now=3.0)
    assert plan == Plan((back, early, late))
    assert plan.command == Admit((back.spec, early.spec, late.spec))
    assert len(batcher.waiting) == 0 and batcher.take(worker(), now=3.0) is None
    assert batcher.wake_at(now=0.0) is None


def test_no_more_is_sent_than_slots_and_some_ahead() -> None:
    """Four slots and two ahead, of which three are taken."""
    batcher, held = batcher_of(*requests(*[4] * 9)), of_priority(0, 3)
    plan = batcher.take(worker(*held, rows=4), now=0.0)
    assert plan is not None and rows_of(plan) == [0, 1, 2]
    assert batcher.take(worker(*held, *plan.requests, rows=4), now=0.0) is None
    assert len(batcher.waiting) == 6


def test_background_requests_are_taken_as_many_together_as_may_wait() -> None:
    """They were taken one by one, and each prompt that is read alone takes a step from all that run."""
    patients = [request(row_id, length, priority=BACKGROUND) for row_id, length in enumerate([9, 50, 10, 50, 9])]
    held, batcher = of_priority(BACKGROUND, 5), batcher_of(*patients)
    assert batcher.take(worker(*held), now=0.0) is None, "of two rows that may wait there is one"
    taken = [rows_of(batcher.take(worker(*held[:most]), now=0.0)) for most in (4, 4, 5, 5)]
    assert taken == [[0, 2], [1, 3], [4], []]


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
    batcher = batcher_of(*requests(*lengths), limits=limits)
    plan = batcher.take(worker(*requests(*held), capacity=capacity, rows=rows), now=0.0)
    taken = rows_of(plan)
    assert [one.row_id for one in batcher.waiting] == [row for row in range(len(lengths)) if row not in taken]
    assert plan is None or taken
    assert len(held) + len(taken) <= max(rows + limits.prefill_ahead, len(held))
    assert taken == sorted(taken) and taken[:1] in ([], [0])
    widths = [lengths[row] for row in taken]
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


@pytest.mark.parametrize(("priority", "rows", "taken"), [(1, 4, []), (1, 5, [0]), (0, 4, [0])])
def test_nothing_is_read_ahead_behind_rows_that_make_way_for_it(priority: int, rows: int, taken: list[int]) -> None:
    assert rows_of(batcher_of(request()).take(worker(*of_priority(priority), rows=rows), now=0.0)) == taken


def test_requests_that_enter_with_their_prompts_need_a_slot_and_no_similar_length() -> None:
    plan = batcher_of(*requests(2, 40, 3), terms=SHAPE).take(worker(request(100), rows=3), now=0.0)
    assert plan is not None and rows_of(plan) == [0, 1] and plan.terms is SHAPE
