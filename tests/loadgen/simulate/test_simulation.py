"""The real dispatcher on a virtual clock: every strategy serves every request, in times that can be worked out."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from engine.messages import StepStats
from engine.simulated.executor import DeviceUsage
from engine.simulated.machine import Machine
from loadgen.simulate.figures import measure_simulation
from loadgen.simulate.node import ROUTERS
from loadgen.simulate.simulation import Served, Simulation, simulate
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.length.oracle import true_length
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES

COST = Bilinear(p1=0, p2=0, p3=0, p4=1.0, d1=0, d2=0, d3=0, d4=0.1)
"""Prefill 1 s, an iteration 0.1 s."""

GROWING = Bilinear(p1=1e-4, p2=0, p3=0, p4=0.02, d1=1e-6, d2=0, d3=0, d4=0.02)
SLOW = Bilinear(p1=1e-3, p2=0, p3=0, p4=0.02, d1=1e-6, d2=0, d3=0, d4=0.02)
MACHINE = Machine(COST, capacity_tokens=1000, max_num_seqs=4, context_length=250)


def parts(
    name: str, machine: Machine = MACHINE, cost: Bilinear | None = GROWING, group: int = 512, **changes: Any
) -> SchedulerParts:
    limits = BatchLimits.of(Scheduling(**{"slice_length": 8, **changes}), group_tokens=group, max_num_seqs=1)
    fitted = limits.within(machine.capacity_tokens, machine.context_length, machine.max_num_seqs)
    return assemble(STRATEGIES[name], fitted, cost)


def trace(
    count: int, rate: float = 5.0, *, seed: int = 0, longest: int = 80, answers: Sequence[int] = range(1, 61)
) -> list[RequestLengths]:
    rng, time, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        time += rng.expovariate(rate)
        requests.append(RequestLengths(time, rng.randint(1, longest), rng.choice(answers)))
    return requests


def test_an_executor_that_runs_ahead_is_in_the_next_iteration_when_a_row_is_sent() -> None:
    """Two slots: 0-1 reads the first, 1-1.1 decodes it, 1.1-2.1 reads the second, and the first ends at 2.2. The third
    request is sent then, and read at once, or after the iteration that the second row has begun."""
    trace = [RequestLengths(0.0, 3, 3), RequestLengths(0.0, 600, 9), RequestLengths(0.0, 3, 2)]
    machine = replace(MACHINE, max_num_seqs=2, capacity_tokens=2000, context_length=1000)
    for ahead, started in ((False, 2.2), (True, 2.3)):
        twin = replace(machine, runs_ahead=ahead)
        done = simulate(parts("baton-pd", twin, prefill_ahead=0), twin, trace, max_tokens=9)
        assert [one.started for one in done.requests] == pytest.approx([0.0, 1.1, started])


def test_joining_requests_take_the_time_of_their_steps() -> None:
    done = simulate(parts("baton-pd"), MACHINE, [RequestLengths(0.0, 3, 5), RequestLengths(1.05, 3, 2)], max_tokens=9)
    # 0-1 reads the first, 1-1.1 decodes it, 1.1-2.1 reads the second, 2.1-2.3 decodes
    first, second = done.requests
    assert (first.started, first.first_token, first.end) == pytest.approx((0.0, 1.0, 2.4))
    assert (second.started, second.first_token, second.end) == pytest.approx((1.1, 2.1, 2.2))
    assert (first.output_length, second.output_length) == (5, 2)
    [worker] = done.workers
    assert (worker.completion, worker.prefill, worker.decode) == pytest.approx((2.4, 2.0, 0.4))
    assert worker.row_decode == pytest.approx(0.5)
    assert worker.tally == StepStats(prompt=6, generated=7, reads=4 + 2 * 5 + 6 + 7, pad_reads=1)


def test_a_static_batch_returns_its_answers_together() -> None:
    requests = [RequestLengths(0.0, 3, 5), RequestLengths(0.5, 3, 2), RequestLengths(0.5, 3, 4)]
    done = simulate(parts("vs"), MACHINE, requests, max_tokens=9)
    # the first runs alone until 1.4, the others until 2.7
    assert [one.end for one in done.requests] == pytest.approx([1.4, 2.7, 2.7])
    assert [one.first_token for one in done.requests] == pytest.approx([1.4, 2.7, 2.7])
    assert [one.started for one in done.requests] == pytest.approx([0.0, 1.4, 1.4])
    assert done.workers[0].tally.invalid == 2
    assert done.duration == pytest.approx(2.7)


def test_work_is_shared_by_the_executors() -> None:
    trace = [RequestLengths(0.0, 3, 5), RequestLengths(0.5, 3, 5)]
    done = simulate(parts("vs"), replace(MACHINE, workers=2), trace, max_tokens=9)
    assert [one.end for one in done.requests] == pytest.approx([1.4, 1.9])
    assert [worker.completion for worker in done.workers] == pytest.approx([1.4, 1.9])


def test_slices_are_counted() -> None:
    done = simulate(parts("so", slice_length=4), MACHINE, [RequestLengths(0.0, 3, 10)], max_tokens=20)
    assert done.requests[0].runs == 3  # 1 + 4, 4, 1
    assert done.requests[0].end == pytest.approx(1.9)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_serves_every_request_and_alike_when_it_is_asked_again(name: str) -> None:
    machine, requests = replace(MACHINE, cost=GROWING, workers=3), trace(120)
    done, again = (simulate(parts(name, machine), machine, requests, max_tokens=100) for _ in range(2))
    assert done == again
    assert [(one.arrival, one.input_length, one.output_length, one.completed) for one in done.requests] == [
        (one.arrival, one.input_length, one.output_length, True) for one in requests
    ]
    for one in done.requests:
        assert one.arrival <= one.started <= one.first_token <= one.end
    assert sum(worker.tally.generated for worker in done.workers) == sum(one.output_length for one in requests)
    assert max(one.end for one in done.requests) == max(worker.completion for worker in done.workers)


REQUESTS = st.builds(RequestLengths, st.floats(0, 10), st.integers(1, 100), st.integers(1, 60))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.lists(REQUESTS, min_size=1, max_size=15),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
)
def test_any_trace_is_served(name: str, requests: Any, workers: int, rows: int, recompute: bool) -> None:
    machine = Machine(GROWING, 260, rows, 200, workers, max_prefill_tokens=64)
    done = simulate(parts(name, machine, recompute=recompute), machine, requests, max_tokens=60)
    arrived = sorted(requests, key=lambda one: one.arrival)
    assert [one.output_length for one in done.requests] == [one.output_length for one in arrived]


def test_answers_stop_at_the_length_that_was_asked_for() -> None:
    done = simulate(parts("baton-pd"), MACHINE, [RequestLengths(0.0, 3, 50)], max_tokens=9)
    assert done.requests[0].output_length == 9


def test_a_request_that_no_executor_holds_and_an_empty_trace_are_refused() -> None:
    with pytest.raises(UserError, match=r"200 \+ 60 .*--max-input-len"):
        simulate(parts("vs"), MACHINE, [RequestLengths(0.0, 3, 5), RequestLengths(0.0, 200, 60)], max_tokens=100)
    with pytest.raises(UserError, match="empty"):
        simulate(parts("vs"), MACHINE, [], max_tokens=9)


def test_a_strategy_that_serves_nobody_is_found_out() -> None:
    with pytest.raises(UserError, match="1 requests unserved"):
        simulate(replace(parts("vs"), placement=lambda _: []), MACHINE, [RequestLengths(0.0, 3, 5)], max_tokens=9)


def test_who_watches_sees_each_request_end() -> None:
    seen: list[int] = []
    simulate(parts("baton-pd"), MACHINE, trace(5), 100, seen.append)
    assert seen == [1, 2, 3, 4, 5]


# Figures


def served(arrival: float, first: float, end: float, *, tokens: int = 10, runs: int = 1, ok: bool = True) -> Served:
    return Served(arrival, arrival, first, end, 5, tokens, runs, None, ok)


def test_figures_by_hand() -> None:
    one = Simulation(
        requests=(served(1.0, 2.0, 3.0), served(2.0, 5.0, 6.0, tokens=30, runs=3), served(3.0, 3.5, 4.0, ok=False)),
        workers=(
            DeviceUsage(4.0, 1.0, decode=2.0, row_decode=6.0, tally=StepStats(pad=30, invalid=3)),
            DeviceUsage(6.0, 1.0, decode=1.0, row_decode=1.5, tally=StepStats(pad=3, invalid=9)),
        ),
    )
    known = {
        **{"duration": 5.0, "completed": 2, "failed": 1, "request_throughput": 0.4, "output_throughput": 8.0},
        **{"mean_jct_ms": 3000.0, "mean_ttft_ms": 2000.0, "mean_batch_size": 2.5},
        **{"pad_tokens": 11.0, "invalid_tokens": 4.0, "slices": 5 / 3, "completion_std": 1.0},
    }
    assert measure_simulation(one).items() >= known.items()


def test_turns_of_a_conversation_follow_each_other_and_read_what_is_new() -> None:
    """Two turns of 100 tokens, answers of 50: the second comes 2 s after the first's answer, with 150 + 100 tokens, of
    which the first whole chunk of 64 is kept."""
    machine = replace(MACHINE, capacity_tokens=2000, context_length=2000, prefix_cache_tokens=1000)
    load = [RequestLengths(0.0, 100, 50), RequestLengths(0.5, 100, 50), RequestLengths(1.0, 30, 5)]
    done = simulate(parts("baton-pd"), machine, load, 100, turns=2, think_time=2.0)
    first, alone, second = done.requests
    assert [one.input_length for one in done.requests] == [100, 30, 250]
    assert second.arrival == pytest.approx(first.end + 2.0) and alone.arrival == 1.0
    assert [one.cached_prompt for one in done.requests] == [0, 0, 64]
    without = simulate(parts("baton-pd"), replace(machine, prefix_cache_tokens=0), load, 100, turns=2, think_time=2.0)
    assert sum(one.tally.prompt for one in without.workers) == 64 + sum(one.tally.prompt for one in done.workers) == 380


def test_a_conversation_ends_before_a_turn_that_does_not_fit() -> None:
    done = simulate(parts("baton-pd"), MACHINE, [RequestLengths(0.0, 60, 30)] * 3, 100, turns=3)
    assert len(done.requests) == MACHINE.longest // 90


bimodal = partial(trace, seed=1, longest=20, answers=(3, 3, 3, 3, 150))


def behind(router: str, requests: list[RequestLengths], machines: Sequence[Machine]) -> Simulation:
    first, *others = ((parts("lengthwise", machine), machine) for machine in machines)
    return simulate(*first, requests, 150, predict=true_length, others=others, router=ROUTERS[router]())


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_has_all_requests_served(router: str) -> None:
    requests = bimodal(150, 20.0)
    done = behind(router, requests, [replace(MACHINE, cost=GROWING, workers=2)] * 3)
    assert [one.output_length for one in done.requests] == [one.output_length for one in requests]
    assert len(done.workers) == 6 and all(worker.completion for worker in done.workers)


def test_eight_nodes_serve_eight_times_as_many() -> None:
    machine = replace(MACHINE, cost=GROWING)
    one = behind("work", bimodal(200, 1000.0), [machine])
    assert behind("work", bimodal(1600, 8000.0), [machine] * 8).throughput >= 7.6 * one.throughput


def test_the_longest_waits_are_shorter_where_work_is_known() -> None:
    requests, machines = bimodal(600, 20.0), [replace(MACHINE, cost=GROWING)] * 4
    p99 = {name: measure_simulation(behind(name, requests, machines))["p99_jct_ms"] for name in ROUTERS}
    assert p99["work"] < 0.9 * p99["pow2"] < 0.9 * p99["round-robin"]


def test_a_node_of_half_the_speed_gets_half_the_work() -> None:
    fast = replace(MACHINE, cost=GROWING)
    slow = replace(fast, pace=lambda now, seconds: 2 * seconds)
    # They are not told how fast they are, but learn it from their steps.
    nodes = [(parts("lengthwise", machine, cost=None), machine) for machine in (fast, slow)]
    router = ROUTERS["work"]()
    done = simulate(*nodes[0], bimodal(400, 8.0), 150, predict=true_length, others=nodes[1:], router=router)
    made = [worker.tally.generated for worker in done.workers]
    assert made[0] / made[1] == pytest.approx(2, rel=0.25)
    busy = [worker.prefill + worker.decode for worker in done.workers]
    assert busy[0] == pytest.approx(busy[1], rel=0.1)


def test_a_conversation_stays_where_its_prefix_is_kept() -> None:
    machine = replace(MACHINE, cost=replace(GROWING, p1=0.01), prefix_cache_tokens=100_000)
    requests = [RequestLengths(place / 3, 70, 5) for place in range(60)]
    kept = {}
    for name in ("work", "pow2"):
        (first, *others), router = [(parts("lengthwise", machine), machine) for _ in range(4)], ROUTERS[name]()
        done = simulate(*first, requests, 9, predict=true_length, turns=2, think_time=1.0, others=others, router=router)
        kept[name] = sum(one.cached_prompt for one in done.requests)
    assert kept["work"] > 1.5 * kept["pow2"]


def test_ends_are_foretold_with_the_time_that_prompts_take() -> None:
    """A prompt of 900 tokens was expected to take as long as one of 10, so that half of the ends were a third off."""
    slow = replace(MACHINE, cost=SLOW, capacity_tokens=10_000, context_length=1000)
    load = [RequestLengths(4.0 * number, 900 if number % 2 else 10, 50) for number in range(200)]
    told = measure_simulation(simulate(parts("lengthwise", slow, SLOW, 1000), slow, load, 50, predict=true_length))
    assert told["foretold_answers"] > 190 and told["foretold_error"] < 0.05 and told["foretold_inside"] > 0.85


def test_a_new_server_keeps_its_promises_in_bursts_of_long_prompts_and_promises_near_ends_after_them() -> None:
    """Of the first of them 8 of 40 were; calls after them were promised ends 90 times as far as they took."""
    cost = replace(SLOW, p1=0.0007, p4=0.003, d4=0.011, d1=4e-6)
    machine = replace(MACHINE, cost=cost, capacity_tokens=100_000, context_length=4000, max_num_seqs=32)
    lengths = random.Random(5)
    bursts = [(burst, 30.0 + 40 * burst + 0.002 * place) for burst in range(3) for place in range(40)]
    load = [
        *(RequestLengths(1.0 * place, 20, 40) for place in range(10)),
        *(RequestLengths(at, lengths.randint(30, 1300), 40) for _, at in bursts),
        *(RequestLengths(150.0 + place, 20, 40) for place in range(15)),
    ]
    done = simulate(parts("lengthwise", machine, cost, 4000), machine, load, 40, predict=true_length)
    told = [one.foretold.high / (one.end - one.arrival) for one in done.requests if one.foretold]
    assert [sum(each >= 1 for each in told[10 + 40 * burst :][:40]) >= 34 for burst in range(3)] == [True] * 3
    assert median(told[:10]) < 2 and median(told[10:130]) < 2 and median(told[130:]) < 5


def test_ends_of_a_burst_are_foretold_after_one_request_alone() -> None:
    """Four rows were expected to work as fast as one, and one that came at the same moment before
    all others, so that none was expected to wait."""
    load = [RequestLengths(0.0, 10, 50), *(RequestLengths(30.0, 10, 20 + number % 60) for number in range(60))]
    machine = replace(MACHINE, cost=SLOW)
    done = simulate(parts("baton-pd", machine, SLOW), machine, load, 100, predict=true_length)
    told = [(one.foretold, one.end - one.arrival) for one in done.requests[1:]]
    assert all(foretold and foretold.median == pytest.approx(seconds, rel=0.3) for foretold, seconds in told)
