"""Who makes way for whom, and background rows beside others: the rules by hand, the dispatcher's part in them, what
they cost; nothing is lost and nothing thrashes."""

import math
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from engine.messages import Cause, FinishReason, Pause
from engine.sampling.params import SamplingParams
from engine.simulated.machine import Machine
from loadgen.simulate.node import Node, VirtualClock
from loadgen.simulate.prediction import read_prediction
from loadgen.simulate.simulation import fit_parts, simulate
from loadgen.workload.lengths import RequestLengths
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.continuous import ContinuousBatcher
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import Background, ByOrder, ByPriority
from scheduler.options import Scheduling
from scheduler.placement import idle_first
from scheduler.plan import Assignment, Plan
from scheduler.request import BACKGROUND, Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.strategy import STRATEGIES
from scheduler.waiting.by_length import Sjf
from scheduler.worker import Worker
from tests.scheduler.fakes import Stage, admitted, filled, kit, port, request, token, worker

SLICE = 4
COST = Bilinear(0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1)
SHORTEST = ByOrder(Sjf().key, SLICE)
"""The least that is left first."""


def row(row_id: int, left: float, *, had: int = SLICE) -> Request:
    """One that has generated `had` tokens here."""
    return request(row_id, generated=had, predicted_length=had + left)


def running(*rows: Request, index: int = 0) -> Worker:
    held = worker(*rows, index=index)
    for one in rows:
        assignment = held.assignments[one.row_id] = Assignment(Plan((one,)), index, 0.0)
        assignment.before[one], one.runs = 0, 1
    return held


def waiting(left: float) -> Request:
    return row(9, left, had=0)


@pytest.mark.parametrize(("left", "swapped"), [(2.0, True), (3.0, True), (4.0, False), (5.0, False)])
def test_the_last_by_the_order_makes_way_for_a_better_one(left: float, swapped: bool) -> None:
    rows = row(1, 3.0), row(2, 4.0)
    assert SHORTEST(running(*rows), [waiting(left)], 0.0) == ((2,) if swapped else ())


@pytest.mark.parametrize(("had", "swapped"), [(4, True), (5, False)])
def test_a_row_that_has_most_of_its_prediction_keeps_its_slot(had: int, swapped: bool) -> None:
    """TRAIL with C = 0.6: a row of 8 predicted tokens loses its slot up to its 4th, and has 4 or 3 left."""
    early = ByOrder(Sjf().key, SLICE, early=0.6)
    assert early(running(row(1, 8.0 - had, had=had)), [waiting(1.0)], 0.0) == ((1,) if swapped else ())


@pytest.mark.parametrize(("had", "asked"), [(SLICE - 1, set[int]()), (SLICE, {1})])
def test_a_row_keeps_its_slot_for_a_slice_and_is_asked_for_it_once(had: int, asked: set[int]) -> None:
    held = running(row(1, 4.0, had=had))
    held.pausing |= asked
    assert SHORTEST(held, [waiting(1.0)], 0.0) == ()


@pytest.mark.parametrize(("left", "swapped"), [([3.0, 1.0], (2,)), ([5.0, 1.0], ()), ([], ())])
def test_only_the_best_that_waits_is_weighed(left: list[float], swapped: tuple[int, ...]) -> None:
    assert SHORTEST(running(row(1, 4.0), row(2, 4.0)), list(map(waiting, left)), 0.0) == swapped


def test_one_row_of_one_executor_makes_way_at_a_time() -> None:
    limits = BatchLimits(group_tokens=64, prefill_ahead=0, options=Scheduling(slice_length=SLICE))
    batcher = assemble(STRATEGIES["srpt"], limits).batcher
    workers = [running(row(1, 2.0)), running(row(2, 4.0), index=1), running(row(3, 4.0), index=2)]
    batcher.add(waiting(3.0), 0.0)
    assert batcher.preempt(workers, 0.0) == {1: (2,)}


def of_priority(row_id: int, priority: int, length: int = 4) -> Request:
    return request(row_id, length, priority=priority)


BY_PRIORITY = ByPriority(MEMORIES["scale"])


LEAVING = [([0], [2]), ([0, 0], [2, 1]), ([0, 0, 0], [2, 1]), ([1], [2]), ([2], []), ([1, 0], [2, 1]), ([1, 2], [2])]


@pytest.mark.parametrize(("waiting", "leaving"), LEAVING)
def test_the_worst_by_priority_make_way_and_no_more_than_needed(waiting: list[int], leaving: list[int]) -> None:
    held = worker(*(of_priority(priority, priority) for priority in (0, 1, 2)), rows=3)
    asked = [of_priority(10 + place, priority) for place, priority in enumerate(waiting)]
    assert BY_PRIORITY(held, asked, 0.0) == tuple(sorted(leaving))


def test_none_makes_way_where_there_is_room_or_for_what_does_not_fit_all_the_same() -> None:
    rows = of_priority(1, 0, 50), of_priority(2, 5, 10)
    held = worker(*rows, rows=2, capacity=110)
    assert BY_PRIORITY(held, [of_priority(9, 1, 40)], 0.0) == (2,)
    assert BY_PRIORITY(held, [of_priority(9, 1, 60)], 0.0) == (), "two rows of 61 columns do not fit"
    assert BY_PRIORITY(worker(*rows, rows=3, capacity=200), [of_priority(9, 1, 40)], 0.0) == ()


def test_while_rows_are_asked_to_leave_no_others_are() -> None:
    first, second = (worker(of_priority(index, 1), index=index, rows=1) for index in (0, 1))
    batcher = filled(ContinuousBatcher(kit(BatchLimits(group_tokens=64, prefill_ahead=0))), [of_priority(9, 0)])
    assert batcher.preempt([first, second], 0.0) == {0: (0,)}
    first.pausing.add(0)
    assert batcher.preempt([first, second], 0.0) == {}


@pytest.mark.parametrize("strategy", ["baton-pd", "baton", "ils", "lengthwise"])
def test_a_request_of_better_priority_gets_the_slot_of_a_worse_one_which_goes_on_later(strategy: str) -> None:
    clock = VirtualClock()
    machine, limits = Machine(COST, 1000, 1, context_length=500), BatchLimits(group_tokens=64, prefill_ahead=1)
    node = Node(fit_parts(STRATEGIES[strategy], limits, machine, COST), machine, clock)
    long_one = node.submit((0,) * 4, SamplingParams(100, replay_tokens=100), None, priority=1)
    node.advance()
    clock.move_to(1.0)
    node.advance()
    short = node.submit((0,) * 4, SamplingParams(100, replay_tokens=5), None, priority=0)
    while not (long_one.state.is_final and short.state.is_final):
        clock.move_to(node.due)
        node.advance()
    assert (long_one.runs, short.runs, long_one.generated, short.generated) == (2, 1, 100, 5)
    # The step under way when it comes ends at 1.1 s; the other has made one token of its 100 by then.
    assert short.times.end == pytest.approx(1.6, abs=0.11) and long_one.times.end == pytest.approx(11.5, abs=0.11)


def test_the_dispatcher_asks_for_the_slot_and_gives_it_to_whom_it_is_for() -> None:
    limits = BatchLimits(group_tokens=64, prefill_ahead=0, options=Scheduling(slice_length=2))
    stage = Stage(port(rows=1), strategy="srpt", limits=limits)
    long_one = stage.submit(predicted_length=8.0)
    assert stage.dispatch() == [[long_one.row_id]]
    stage.report(token(long_one.row_id, 0, 1))
    short = stage.submit(predicted_length=1.0)
    stage.dispatcher.dispatch()
    assert stage.ports[0].take() == [Pause((long_one.row_id,))]
    stage.dispatcher.dispatch()
    assert stage.ports[0].take() == [], "it was asked already"
    stage.hand_back(Cause.PAUSE, long_one.row_id)
    assert stage.dispatch() == [[short.row_id]]
    assert (long_one.generated, list(stage.dispatcher.waiting)) == (2, [long_one])


@given(
    st.integers(0, 2**32),
    st.sampled_from(["none", "oracle", "noisy:0.7"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from(["srpt", "gittins", "uniboost"]),
)
@settings(max_examples=40, deadline=None)
def test_none_is_lost_or_paused_early(seed: int, prediction: str, slots: int, workers: int, strategy: str) -> None:
    rng, time, trace = random.Random(seed), 0.0, []
    for _ in range(60):
        time += rng.expovariate(0.7 * slots * workers)
        trace.append(RequestLengths(time, rng.randint(1, 30), rng.choice((1, 3, 10, 80))))
    limits = BatchLimits(group_tokens=64, prefill_ahead=0, options=Scheduling(slice_length=8))
    machine = Machine(COST, capacity_tokens=250 * slots, max_num_seqs=slots, context_length=200, workers=workers)
    parts = fit_parts(STRATEGIES[strategy], limits, machine, COST)
    done = simulate(parts, machine, trace, 80, predict=read_prediction(prediction).source(seed)).requests
    assert [one.output_length for one in done] == [one.output_length for one in trace]
    assert all(one.completed and one.runs - 1 <= one.output_length // 8 for one in done)


PROMPTED = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.08, d1=0.0, d2=0.01, d3=0.0, d4=0.09)
"""A step takes 0.09 s and 0.01 s a row; a prompt, spread over an answer of 8 tokens, another 0.01 s."""


def patient(row_id: int) -> Request:
    return request(row_id, priority=BACKGROUND)


BESIDE = [(0.0, 1, 0), (0.19, 1, 0), (0.2, 1, 1), (0.39, 1, 1), (0.4, 1, 2), (0.4, 3, 2), (0.4, 6, 3), (0.0, 0, 4)]


@pytest.mark.parametrize(("share", "others", "rows"), BESIDE)
def test_background_rows_lengthen_a_step_of_others_by_a_share_at_most(share: float, others: int, rows: int) -> None:
    """Each takes 0.02 s of a step; one of other rows alone takes 0.1, 0.12 or 0.15 s."""
    background = Background(share + 1e-9, MachineModel(PROMPTED))
    held, waiting = [request(10 + place) for place in range(others)], [patient(place) for place in range(4)]
    assert list(background.within(worker(*held, rows=16), waiting)) == waiting[:rows]
    leaving = background(worker(*waiting, *held, rows=16), (), 0.0)
    assert leaving == tuple(range(rows, 4)), "the latest make way, where others came later"


def test_rows_that_are_there_count_and_those_that_were_asked_to_leave_are_not_asked_again() -> None:
    background, held = Background(0.4 + 1e-9, MachineModel(PROMPTED)), worker(patient(0), request(10), rows=16)
    assert [one.row_id for one in background.within(held, [patient(1), patient(2)])] == [1]
    held = worker(patient(0), patient(1), request(10))
    held.pausing.add(0)
    assert Background(0.0, MachineModel(PROMPTED))(held, (), 0.0) == (1,)


def test_while_prices_are_unknown_nothing_runs_beside_others() -> None:
    background = Background(100.0, MachineModel())
    assert list(background.within(worker(request(1)), [patient(2)])) == []
    assert list(background.within(worker(), [patient(2)])) != []


def test_who_comes_gets_the_executor_whose_rows_make_way() -> None:
    crowded, idle = worker(patient(0), patient(1)), worker(request(2))
    assert idle_first([idle, crowded])[0] is crowded


def parts_for(strategy: str, slowdown: float, slots: int) -> SchedulerParts:
    limits = BatchLimits(64, 0, Scheduling(batch_slowdown=slowdown)).within(1000 * slots, 1000, slots)
    return assemble(STRATEGIES[strategy], limits, PROMPTED)


def test_rows_make_way_when_others_come_and_go_on_when_they_have_gone() -> None:
    stage = Stage(port(rows=4), parts=parts_for("baton-pd", 0.2 + 1e-9, 4))
    for _ in range(3):
        stage.submit(2, priority=BACKGROUND)
    assert stage.dispatch() == [[0, 1, 2]]
    stage.submit(2)
    stage.dispatcher.dispatch()
    commands = stage.ports[0].take()
    assert admitted(commands) == [[3]] and commands[1:] == [Pause((1, 2))]
    stage.hand_back(Cause.PAUSE, 1, 2)
    stage.dispatcher.dispatch()
    assert stage.ports[0].take() == [], "there is no room for them beside the other"
    stage.report(token(3, 7, end=FinishReason.STOP))
    assert stage.dispatch() == [[1, 2]]


def test_background_requests_that_wait_are_in_nobodys_way() -> None:
    stage = Stage(port(rows=4), parts=parts_for("baton-pd", 0.0, 4))
    stage.submit(2)
    for _ in range(3):
        stage.submit(2, priority=BACKGROUND)
    stage.dispatch()
    table = stage.dispatcher.table
    assert (len(stage.dispatcher.waiting), table.requests_in_line, table.tokens_waiting) == (3, 0, 0)
    assert stage.dispatcher.waits.free_slots == 3


def serve(strategy: str, slowdown: float, *, beside: bool) -> list[float]:
    """Seconds that each of some requests takes, with as many background rows as there are slots beside them or none."""
    slots, clock, draw = 8, VirtualClock(), random.Random(0)
    machine = Machine(PROMPTED, capacity_tokens=1000 * slots, max_num_seqs=slots, context_length=1000)
    node = Node(parts_for(strategy, slowdown, slots), machine, clock)
    arrivals = np.cumsum([draw.expovariate(0.2) for _ in range(60)])
    lengths = [min(60, max(4, round(draw.lognormvariate(2.5, 0.8)))) for _ in arrivals]
    requests: list[Request] = []
    patients: list[Request] = []
    to_come = deque([*zip(arrivals, lengths, strict=True), (math.inf, 0)])

    def submit(tokens: int, priority: int = 0) -> Request:
        return node.submit((0,) * 16, SamplingParams(60, replay_tokens=tokens), float(tokens), priority=priority)

    while len(to_come) > 1 or any(one.times.end is None for one in requests):
        patients = [one for one in patients if one.times.end is None]
        while beside and len(patients) < slots:
            patients.append(submit(30, BACKGROUND))
        clock.move_to(min(to_come[0][0], node.due))
        while to_come[0][0] <= clock.now():
            requests.append(submit(to_come.popleft()[1]))
        node.advance()
    return [one.times.end - one.times.arrival for one in requests if one.times.end is not None]


@pytest.mark.parametrize("strategy", ["lengthwise", "baton-pd", "srpt", "ils", "baton"])
def test_a_batch_costs_others_a_twentieth_of_their_p99_at_most(strategy: str) -> None:
    """Where free slots were filled beside others, as many rows as there are slots made each step longer."""
    alone, bounded, free = (
        float(np.quantile(serve(strategy, slowdown, beside=beside), 0.99))
        for slowdown, beside in ((0.05, False), (0.05, True), (math.inf, True))
    )
    assert bounded <= 1.05 * alone
    assert free > 1.2 * alone
