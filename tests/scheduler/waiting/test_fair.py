"""Fair shares by hand, VTC's bound on the difference of service, and shares in the simulator."""

from collections.abc import Callable
from dataclasses import replace
from heapq import merge
from itertools import combinations, count, islice
from operator import attrgetter

import pytest
from hypothesis import given, settings, strategies as st

from engine.simulated.machine import Machine
from loadgen.simulate.simulation import Served, fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.request import Request, State
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES
from scheduler.waiting.by_length import Fcfs
from scheduler.waiting.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT, Fair, Shares, service, service_had, share_out
from scheduler.waiting.order import Order
from scheduler.waiting.out_of_turn import OutOfTurn
from scheduler.waiting.queue import RankedQueue
from tests.scheduler.fakes import request
from tests.scheduler.waiting.predicted import AGING, fill, first, queue_by

by_arrival = attrgetter("arrival")


def by_the_default() -> Order:
    return OutOfTurn(0.3, 4.0)


def sent(
    row_id: int, client: str, prompt: int = 10, predicted: float | None = None, most: int = 100, priority: int = 0
) -> Request:
    known = {"client": client, "predicted_length": predicted, "priority": priority}
    return request(row_id, prompt, arrival=float(row_id), max_tokens=most, **known)


def queue_of(*requests: Request, shares: Shares | None = None) -> RankedQueue:
    return queue_by(Fair(Fcfs, shares or {}, AGING), *requests)


def run(queue: RankedQueue, row_id: int, generated: int) -> Request:
    """A request is taken from the queue and generates so many tokens."""
    one = next(each for each in queue if each.row_id == row_id)
    queue.serve(one)
    one.move(State.ASSIGNED)
    one.move(State.RUNNING)
    one.times.started, one.generated = 0.0, generated
    return one


def end(queue: RankedQueue, one: Request, state: State = State.FINISHED) -> None:
    one.move(state)
    queue.order.ended(one)


def test_clients_take_turns_and_each_keeps_its_own_order() -> None:
    queue = queue_of(*(sent(n, "a") for n in range(4)), sent(4, "b"), sent(5, "b"))
    assert first(queue) == [0, 4, 1, 5, 2, 3]
    assert len(queue) == 6 and sorted(one.row_id for one in queue) == [0, 1, 2, 3, 4, 5]


ADDRESSES = [
    ([*(f"flood/{n}" for n in range(6)), "modest/me", "modest/me"], [0, 6, 1, 7, 2, 3, 4, 5]),
    (["gateway/a", "gateway/a", "gateway/b", "other", "other"], [0, 3, 2, 4, 1]),
]


@pytest.mark.parametrize(("names", "ranked"), ADDRESSES)
def test_names_of_one_address_take_turns_within_its_share_however_many(names: list[str], ranked: list[int]) -> None:
    """With 12 new names for one of another address, that one waited seven seconds and had one answer in nine."""
    assert first(queue_by(share_out(Fcfs, {}, AGING), *(sent(n, name) for n, name in enumerate(names)))) == ranked


def test_turns_go_by_service_and_weight() -> None:
    """Each request of a costs as much as two of b, whose weight is 2: four of b to one of a."""
    requests = [sent(n, "a", prompt=20) for n in range(2)] + [sent(n, "b") for n in range(2, 12)]
    assert first(queue_of(*requests, shares={"b": 2.0}), 9) == [0, 2, 3, 4, 5, 1, 6, 7, 8]


def test_tokens_are_charged_as_they_come() -> None:
    queue = queue_of(sent(0, "a"), sent(1, "b"), sent(2, "a"), sent(3, "b"))
    ahead = run(queue, 0, generated=0)
    run(queue, 1, generated=5)
    assert first(queue) == [2, 3]
    ahead.generated = 6
    assert first(queue) == [3, 2]


def test_a_prediction_is_charged_at_once_and_corrected() -> None:
    queue = queue_of(sent(0, "a", predicted=50.0), sent(1, "b", predicted=20.0), sent(2, "a"), sent(3, "b"))
    long = run(queue, 0, generated=1)
    run(queue, 1, generated=1)
    assert first(queue) == [3, 2]
    end(queue, long)
    assert first(queue) == [2, 3]  # it had predicted 50 and made 1


def test_a_request_that_never_started_costs_nothing() -> None:
    queue = queue_of(sent(0, "a", prompt=90), sent(1, "a"), sent(2, "b"))
    gone = run(queue, 0, generated=0)
    gone.times.started = None
    end(queue, gone, State.FAILED)
    assert first(queue) == [1, 2]


def test_one_that_was_handed_back_is_charged_for_the_rest_only() -> None:
    queue = queue_of(sent(0, "a", predicted=30.0), sent(1, "b", prompt=35))
    back = run(queue, 0, generated=10)
    run(queue, 1, generated=0)
    back.move(State.WAITING)
    assert first(fill(queue, back, sent(2, "b"))) == [0, 2]  # a has had 10 + 2·10, b 35
    queue.serve(back)
    queue.add(sent(3, "a"))
    back.move(State.ASSIGNED)
    assert first(queue) == [2, 3]  # and now a is charged for 10 + 2·30


def test_a_client_that_returns_has_saved_nothing_up() -> None:
    queue = queue_of(*(sent(n, "a") for n in range(9)))
    for n in range(5):
        run(queue, n, generated=100)
    fill(queue, *(sent(n, "b") for n in range(10, 14)))
    assert first(queue, 5) == [10, 5, 11, 6, 12]


def test_into_an_empty_queue_it_returns_at_the_level_of_the_last_that_left() -> None:
    queue = queue_of(sent(0, "a"))
    run(queue, 0, generated=100)
    assert first(fill(queue, sent(1, "b"), sent(2, "a"))) == [1, 2]
    run(queue, 1, generated=2)
    assert first(queue) == [2] and first(fill(queue, sent(3, "b"))) == [2, 3]


def test_a_client_can_put_itself_back_by_priority_but_not_before_others() -> None:
    queue = queue_of(sent(0, "a"), sent(1, "a", priority=1), sent(2, "b", priority=-1), sent(3, "b", priority=1))
    assert (first(queue), queue.best_priority) == ([0, 2, 1, 3], 0)
    assert first(fill(queue, sent(4, "b", priority=-2))) == [0, 4, 2, 1, 3]


def test_what_is_discarded_or_unknown_is_not_here() -> None:
    queue, one = queue_of(sent(0, "a")), sent(1, "b")
    assert one not in queue and not queue.discard(one)
    queue.revise(one)
    queue.add(one)
    assert one in queue and queue.discard(one) and one not in queue
    assert first(queue) == [0]


def test_another_prediction_costs_a_client_nothing() -> None:
    """Where it left and came again, it was lifted to the least counter of the others."""
    queue = queue_of(sent(0, "b"), sent(1, "a"), sent(2, "b"), later := sent(3, "a"))
    run(queue, 0, generated=50)
    run(queue, 1, generated=1)
    queue.revise(later)
    assert first(queue) == [3, 2]


def test_clients_that_are_gone_are_forgotten() -> None:
    queue = queue_by(order := Fair(Fcfs, {}, AGING))
    for n in range(10_000):
        queue.add(sent(n, f"client {n}"))
        end(queue, run(queue, n, generated=1))
    assert len(order._clients) <= 4097


def test_what_is_ahead_is_counted_as_if_clients_took_turns() -> None:
    queue = queue_of(*(sent(n, "a", predicted=5.0) for n in range(6)), *(sent(n, "b", predicted=5.0) for n in (6, 7)))
    places = {one.row_id: queue.ahead(one, 0.0) for one in queue}
    assert [ahead.place for ahead in places.values()] == [0, 2, 4, 5, 6, 7, 0, 2]
    newcomer = queue.ahead(sent(8, "c", predicted=5.0), 0.0)
    assert (newcomer.place, newcomer.tokens) == (0, 0.0)
    assert (queue.total().place, queue.total().tokens) == (8, 40.0)


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[list[list[tuple[int, int, float | None]]], int]:
    """Requests of three clients, as (prompt, answer, predicted), and the slots of the executor."""
    predicts = draw(st.booleans())
    sizes = st.tuples(st.integers(1, 30), st.integers(1, 20), st.floats(1.0, 20.0) if predicts else st.none())
    return [draw(st.lists(sizes, min_size=10, max_size=60)) for _ in range(3)], draw(st.integers(1, 6))


@pytest.mark.parametrize("new_order", [Fcfs, by_the_default])
@settings(max_examples=60, deadline=None)
@given(backlogs())
def test_services_of_clients_that_wait_all_the_while_differ_by_no_more_than_the_bound(
    new_order: Callable[[], Order], given_backlogs: tuple[list[list[tuple[int, int, float | None]]], int]
) -> None:
    """One token a row a step; the differences at any two steps are within the bound of scheduler/waiting/fair.py."""
    backlogs, slots = given_backlogs
    shares = {"0": 1.0, "1": 2.0, "2": 0.5}
    queue, numbers = queue_by(order := Fair(new_order, shares, AGING)), count()
    lengths: dict[Request, int] = {}
    for place, backlog in enumerate(backlogs):
        for prompt, answer, predicted in backlog:
            one = sent(next(numbers), str(place), prompt, predicted, 20)
            lengths[one] = answer
            queue.add(one)
    running: list[Request] = []
    history: list[list[float]] = []
    while all(client in order._active for client in shares):
        for one in list(islice(queue.ranked(0.0), slots - len(running))):
            queue.serve(one)
            one.move(State.ASSIGNED)
            one.times.started = 0.0
            running.append(one)
        for one in running:
            one.generated += 1
            if one.generated >= lengths[one]:
                end(queue, one)
        running = [one for one in running if not one.state.is_final]
        had = [(one.client, service_had(one)) for one in lengths]
        history.append([sum(each for name, each in had if name == client) / shares[client] for client in shares])
    heavy = OUTPUT_WEIGHT * slots * 20 / min(shares.values())
    bound = 2 * (PROMPT_WEIGHT * 30 / min(shares.values()) + heavy) + 4 * heavy
    for left, right in combinations(range(3), 2):
        apart = [services[left] - services[right] for services in history]
        assert not apart or max(apart) - min(apart) <= bound


COST = Bilinear(p1=2e-5, p2=1e-3, p3=1e-5, p4=2e-3, d1=1e-7, d2=2e-4, d3=1e-6, d4=0.03)
"""Some 450 tokens a second."""
MACHINE = Machine(COST, capacity_tokens=32_768, max_num_seqs=16, context_length=2048)


def served(
    strategy: str, trace: list[RequestLengths], shares: Shares | None, length: float | None = None
) -> list[Served]:
    """The trace served; lengths are predicted as `length` of the true ones."""
    limits = BatchLimits(group_tokens=512, prefill_ahead=2, shares=shares)
    predict = None if length is None else lambda sampling: length * float(sampling.replay_tokens or 1)
    parts = fit_parts(STRATEGIES[strategy], limits, MACHINE, COST)
    return list(simulate(parts, MACHINE, trace, 2000, predict=predict).requests)


def shares_by_minute(trace: list[RequestLengths], done: list[Served], client: str, seconds: int) -> list[float]:
    """The part of all service that a client had in the minutes from 20 s on, one each 10 s; tokens spread evenly."""

    def had(one: Served, start: float, end: float) -> float:
        spent = max(0.0, min(end, one.end) - max(start, one.first_token)) / max(1e-9, one.end - one.first_token)
        prompt = PROMPT_WEIGHT * one.input_length if start <= one.started < end else 0.0
        return prompt + OUTPUT_WEIGHT * one.output_length * spent

    parts = []
    for start in range(20, seconds - 60, 10):
        all_of_it = [(each.client, had(one, start, start + 60.0)) for each, one in zip(trace, done, strict=True)]
        parts.append(sum(part for name, part in all_of_it if name == client) / sum(part for _, part in all_of_it))
    return parts


def steady(client: str, rate: float, prompt: int, answer: int, seconds: float) -> list[RequestLengths]:
    return [RequestLengths(n / rate, prompt, answer, client) for n in range(int(rate * seconds))]


SATURATING = [
    ("fair", None, (35.0, 40, 60), 1.0),
    ("lengthwise", 0.7, (5.0, 40, 600), 1.0),
    ("lengthwise", 0.7, (5.0, 40, 600), 3.0),
]


@pytest.mark.parametrize(
    ("strategy", "length", "greedy", "weight"),
    SATURATING,
    ids=["VTC, seven times the requests", "ten times longer answers", "a third of the weight"],
)
def test_minutes_of_shares(strategy: str, length: float | None, greedy: tuple[float, int, int], weight: float) -> None:
    """Saturating clients have theirs in every minute."""
    trace = [*merge(steady("modest", 5.0, 40, 60, 95), steady("greedy", *greedy, 95), key=by_arrival)]
    done = served(strategy, trace, {"modest": weight}, length)
    expected = weight / (weight + 1.0)
    assert all(abs(part / expected - 1.0) <= 0.05 for part in shares_by_minute(trace, done, "modest", 95))


def test_without_shares_the_greedy_client_takes_nearly_all() -> None:
    trace = [*merge(steady("modest", 1.5, 40, 60, 90), steady("greedy", 15.0, 40, 60, 90), key=by_arrival)]
    assert max(shares_by_minute(trace, served("fcfs-continuous", trace, None), "modest", 90)) < 0.15


def test_one_client_alone_is_served_as_without_shares() -> None:
    trace = [RequestLengths(n / 5.0, 20 + n * 37 % 100, 10 + n * 53 % 300, "alone") for n in range(300)]
    alone = served("lengthwise", trace, {}, 0.7)
    plain = served("lengthwise", trace, None, 0.7)
    assert [replace(one, foretold=None) for one in alone] == [replace(one, foretold=None) for one in plain]


def test_a_newcomer_waits_for_a_slot_and_not_for_the_backlog() -> None:
    """Its counter is the least, so it takes the next slot but for those that the greedy client was given before."""
    new = RequestLengths(20.001, 40, 60, "new")
    trace = [*merge(steady("greedy", 25.0, 40, 60, 24), [new], key=by_arrival)]
    fair, plain = (served("lengthwise", trace, given, 1.0)[trace.index(new)] for given in (dict[str, float](), None))
    # an answer of 60 tokens takes 2.1 s
    assert fair.started - fair.arrival < 2.5 < 20.0 < plain.started - plain.arrival


@pytest.mark.parametrize("strategy", ["magnus", "scls", "srpt"])
def test_a_strategy_that_does_not_ask_a_queue_cannot_share(strategy: str) -> None:
    with pytest.raises(UserError, match="leave out --fair"):
        assemble(STRATEGIES[strategy], BatchLimits(group_tokens=512, prefill_ahead=1, shares={}), COST)


def test_service_weighs_generated_tokens_double_and_leaves_kept_prompts_out() -> None:
    one = sent(0, "a", prompt=10)
    one.cached_prompt = 4
    assert (service(one, 3), service_had(one)) == (6 + 2 * 3, 0.0)
