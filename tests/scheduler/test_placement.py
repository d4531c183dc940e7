"""Executors and nodes are ranked by what they have to do."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from scheduler.placement import Placement, idle_first, least_unread, max_min, round_robin
from scheduler.plan import Assignment, Plan
from scheduler.wait_estimate.node_router import Job, NodeLoad, WorkRouter, list_prefixes
from scheduler.waiting.prices import Prices
from scheduler.worker import Worker
from tests.scheduler.fakes import request, worker


def loaded(index: int, *estimates: float, plans: int = 0, slots: int = 4, generated: int = 0) -> Worker:
    """An executor with plans of one row each that take so long."""
    held = [request(row_id, generated=generated) for row_id in range(len(estimates))]
    loaded = worker(*held, index=index, rows=slots)
    loaded.plans = plans
    for one, estimate in zip(held, estimates, strict=True):
        loaded.assignments[one.row_id] = Assignment(Plan((one,), estimate=estimate), index, 0.0)
    return loaded


ONE, THREE = (1.0,), (1.0,) * 3
RANKED = [
    (idle_first, [loaded(2), loaded(0, *THREE), loaded(1, *ONE), loaded(3)], [2, 3, 1, 0]),
    (idle_first, [loaded(0, 1.0, 1.0), loaded(1, *THREE, slots=16)], [1, 0]),  # for its size
    (idle_first, [loaded(0, *THREE, *THREE, *THREE), loaded(1, *THREE, *ONE)], [1, 0]),
    (idle_first, [], []),
    # whoever was given the fewest plans, whatever is left of them
    (round_robin, [loaded(0, plans=2), loaded(2, 9.0, plans=1), loaded(1, 9.0, 9.0, plans=1)], [1, 2, 0]),
    # the least loaded, then the emptiest
    (max_min, [loaded(0, 2.0), loaded(1, 1.0, 0.5), loaded(2, 1.5), loaded(4), loaded(3)], [3, 4, 2, 1, 0]),
    # the fewest unread prompt tokens, then the emptiest
    (least_unread, [loaded(0, *ONE), loaded(1, *THREE, generated=1), loaded(2)], [2, 1, 0]),
]


@pytest.mark.parametrize(("rule", "workers", "ranked"), RANKED)
def test_executors_are_ranked_and_none_is_left_out(rule: Placement, workers: list[Worker], ranked: list[int]) -> None:
    """By the rule, equals by index."""
    assert [one.index for one in rule(workers)] == ranked


PRICES = Prices(prompt=0.1, entry=0.0, token=1.0, cell=0.0, unit=0.5)
"""Half a second for a generated token, a twentieth for one of a prompt."""

JOB = Job(prompt_tokens=20, output_tokens=4.0)
"""1 s of reading and 2 s of decode."""


def load(at: float, work: float, unit: float = 0.5) -> NodeLoad:
    return NodeLoad(at, work, replace(PRICES, unit=unit))


def told(**works: float) -> WorkRouter[str]:
    router: WorkRouter[str] = WorkRouter()
    for name, work in works.items():
        router.tell(name, load(10.0, work))
    return router


def test_the_node_with_the_least_work_is_first_and_what_was_sent_since_it_told_counts_as_seconds() -> None:
    assert told(a=4.0, b=2.0, c=3.0).rank("abc", JOB, 10.0) == ["b", "c", "a"]
    router = told(a=2.0, b=4.9)
    router.note_sent("a", JOB, 10.1)  # 2 + 3 seconds are more than 4.9
    assert router.rank("ab", JOB, 10.1) == ["b", "a"]
    router.tell("a", load(10.1, 4.8))  # what was sent is in that
    assert router.rank("ab", JOB, 10.1) == ["a", "b"]


def test_work_is_done_while_no_news_comes_older_news_changes_nothing_and_what_was_sent_since_counts() -> None:
    router = told(a=5.0)
    router.tell("a", load(9.0, 50.0))
    router.tell("b", load(13.0, 3.5))
    assert router.rank("ab", JOB, 13.0) == ["a", "b"]  # 5 s told 3 s ago are 2
    router = told(a=0.0, b=1.0)
    router.note_sent("a", JOB, 10.9)
    router.tell("a", load(10.5, 0.0))  # told before, arrived after
    assert router.rank("ab", JOB, 11.0) == ["b", "a"]


def test_a_slow_node_gets_work_by_seconds_and_not_by_count() -> None:
    router, sent = told(a=0.0), ""
    router.tell("b", load(10.0, 0.0, unit=1.5))  # three times as slow
    for _ in range(400):
        sent += router.rank("ab", JOB, 10.0)[0]
        router.note_sent(sent[-1], JOB, 10.0)
    assert sent.count("a") == pytest.approx(300, abs=1)


def test_a_kept_prefix_is_counted() -> None:
    prompt = tuple(range(200))
    job = Job(200, 4.0, list_prefixes(prompt, 64))  # reading takes 10 s, decode 2 s
    router = told(a=0.0, b=0.0)
    router.note_sent("a", job, 9.0)
    router.tell("a", load(11.0, 9.0))
    assert router.rank("ab", job, 11.0) == ["a", "b"]  # 9 + 2 against 12
    assert router.rank("ab", Job(200, 4.0, list_prefixes((7, *prompt), 64)), 11.0) == ["b", "a"]


def test_prefixes_depend_on_all_that_is_before() -> None:
    one, two = list_prefixes(b"aaaabbbb", 4), list_prefixes(b"ccccbbbb", 4)
    assert len(one) == len(two) == 2 and not set(one) & set(two)
    assert list_prefixes(b"aaaabb", 4) == one[:1]


def test_a_node_that_is_gone_is_forgotten_and_one_that_has_told_nothing_has_the_prices_of_another() -> None:
    router = told(a=2.0, b=9.0)
    router.keep_only("a")
    router.keep_only("ab")  # b is another now, which has nothing to do
    assert router.rank("ab", JOB, 10.0) == ["b", "a"]
    router.note_sent("b", JOB, 10.0)  # 3 s as at a
    assert router.rank("ab", JOB, 10.0) == ["a", "b"]


def test_requests_of_unknown_length_count_as_long_as_answers_have_been() -> None:
    router: WorkRouter[str] = WorkRouter()
    router.tell("a", replace(load(10.0, 0.0), length=100.0))  # 50 s
    router.tell("b", replace(load(10.0, 10.0), length=60.0))  # 10 s + 30 s
    assert router.rank("ab", Job(0), 10.0) == ["b", "a"]


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 900)), min_size=20, max_size=200), st.integers(2, 6))
def test_no_node_is_ahead_by_more_than_one_request(sizes: list[tuple[int, int]], nodes: int) -> None:
    """List scheduling: of idle nodes none has more than the least loaded one and one request."""
    router: WorkRouter[int] = WorkRouter()
    for name in range(nodes):
        router.tell(name, load(10.0, 0.0))
    work = [0.0] * nodes
    for prompt, output in sizes:
        job = Job(prompt, float(output))
        chosen = router.rank(range(nodes), job, 10.0)[0]
        router.note_sent(chosen, job, 10.0)
        work[chosen] += 0.05 * prompt + 0.5 * output
    assert max(work) - min(work) <= 0.05 * 500 + 0.5 * 900 + 1e-6
