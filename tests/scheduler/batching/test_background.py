"""Background rows beside others: the bound by hand, the dispatcher's part in it, and what it costs the others."""

import math
import random
from collections import deque

import numpy as np
import pytest

from engine.messages import Cause, FinishReason, Pause
from engine.sampling.params import SamplingParams
from engine.simulated.machine import Machine
from loadgen.simulate.node import Node, VirtualClock
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.preemption import Background
from scheduler.options import Scheduling
from scheduler.placement import idle_first
from scheduler.request import BACKGROUND, Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.strategy import STRATEGIES
from tests.scheduler.fakes import Stage, admitted, port, request, token, worker

COST = Bilinear(p1=0.0, p2=0.0, p3=0.0, p4=0.08, d1=0.0, d2=0.01, d3=0.0, d4=0.09)
"""A step takes 0.09 s and 0.01 s a row; a prompt, spread over an answer of 8 tokens, another 0.01 s."""


def patient(row_id: int) -> Request:
    return request(row_id, priority=BACKGROUND)


@pytest.mark.parametrize(
    ("share", "others", "rows"),
    [(0.0, 1, 0), (0.19, 1, 0), (0.2, 1, 1), (0.39, 1, 1), (0.4, 1, 2), (0.4, 3, 2), (0.4, 6, 3), (0.0, 0, 4)],
)
def test_background_rows_lengthen_a_step_of_others_by_a_share_at_most(share: float, others: int, rows: int) -> None:
    """Each takes 0.02 s of a step; one of other rows alone takes 0.1, 0.12 or 0.15 s."""
    background = Background(share + 1e-9, MachineModel(COST))
    held, waiting = [request(10 + place) for place in range(others)], [patient(place) for place in range(4)]
    assert list(background.within(worker(*held, rows=16), waiting)) == waiting[:rows]
    leaving = background(worker(*waiting, *held, rows=16), (), 0.0)
    assert leaving == tuple(range(rows, 4)), "the latest make way, where others came later"


def test_rows_that_are_there_count_and_those_that_were_asked_to_leave_are_not_asked_again() -> None:
    background, held = Background(0.4 + 1e-9, MachineModel(COST)), worker(patient(0), request(10), rows=16)
    assert [one.row_id for one in background.within(held, [patient(1), patient(2)])] == [1]
    held = worker(patient(0), patient(1), request(10))
    held.pausing.add(0)
    assert Background(0.0, MachineModel(COST))(held, (), 0.0) == (1,)


def test_while_prices_are_unknown_nothing_runs_beside_others() -> None:
    background = Background(100.0, MachineModel())
    assert list(background.within(worker(request(1)), [patient(2)])) == []
    assert list(background.within(worker(), [patient(2)])) != []


def test_who_comes_gets_the_executor_whose_rows_make_way() -> None:
    crowded, idle = worker(patient(0), patient(1)), worker(request(2))
    assert idle_first([idle, crowded])[0] is crowded


def parts_for(strategy: str, slowdown: float, slots: int) -> SchedulerParts:
    limits = BatchLimits(64, 0, Scheduling(batch_slowdown=slowdown)).within(1000 * slots, 1000, slots)
    return assemble(STRATEGIES[strategy], limits, COST)


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
    machine = Machine(COST, capacity_tokens=1000 * slots, max_num_seqs=slots, context_length=1000)
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
