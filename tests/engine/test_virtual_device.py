"""The device that only takes time: the simulator's times and counts, step by step, on a clock that the test turns."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from engine.device import HEADROOM
from engine.kv.prefix_cache import PrefixCache
from engine.lifecycle import Lifecycle
from engine.messages import Admit, BatchPolicy, Entry, FinishReason, RowId, RowSpec, RowUpdate
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.virtual_device import VirtualDevice
from loadgen.experiments.engine.setup import make_tokenizer
from models.text import Text
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.presets import H100_8B
from tests.engine.rows import spec
from tests.engine.simulated.device import Device

TEXT = Text(make_tokenizer(320))

COST = Bilinear(p1=0.001, p2=0.0, p3=0.0, p4=0.02, d1=0.0, d2=0.0, d3=0.0, d4=0.009)
CHUNK, ROWS = 2048, 256


@dataclass
class Virtual:
    """The rows of a virtual device, whose steps are asked for one by one; sleeping moves its clock just so far."""

    cost: Bilinear = COST
    rows: int = 4
    time: float = 0.0

    def __post_init__(self) -> None:
        batch, none = SimulatedBatch(100_000, self.rows, HEADROOM), PrefixCache[SimulatedKv](0, chunk=1)
        clock: dict[str, Any] = {"clock": lambda: self.time, "sleep": self.sleep}
        device = VirtualDevice(batch, self.cost, CHUNK, none, name="virtual:x", text=TEXT, **clock)
        self.lifecycle: Lifecycle[SimulatedRow] = Lifecycle(device)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def finish(self) -> Iterator[tuple[float, RowUpdate]]:
        """Each update until nothing is left, and when it came."""
        while not self.lifecycle.table.idle:
            for update in self.lifecycle.turn():
                yield self.time, update


def started(*rows: RowSpec, terms: BatchPolicy = BatchPolicy()) -> Virtual:  # noqa: B008
    virtual = Virtual()
    virtual.lifecycle.table.admit(rows, terms)
    return virtual


def test_steps_take_what_the_cost_says_and_bring_a_token_each() -> None:
    virtual = started(spec(0, 10, 4))
    told = list(virtual.finish())
    assert [time for time, _ in told] == pytest.approx([0.03, 0.039, 0.048, 0.057])
    assert all(len(update.token_ids) == 1 for _, update in told)
    assert [update.finish_reason for _, update in told] == [None, None, None, FinishReason.LENGTH]


def test_what_would_end_or_bend_an_answer_does_not_where_nothing_is_computed() -> None:
    virtual = Virtual()
    wishes = {"stop": ("takes",), "min_tokens": 3, "temperature": 0.7, "repetition_penalty": 1.3}
    virtual.lifecycle.table.admit([spec(0, 10, 80, **wishes)])
    assert sum(update.tokens for _, update in virtual.finish()) == 80


def test_host_work_between_two_steps_delays_the_next_only_where_it_takes_longer_than_one() -> None:
    virtual = started(spec(0, 10, 9))
    ends = []
    for work in (0.5, 0.004, 0.02, 0.0):
        virtual.lifecycle.turn()
        ends.append(virtual.time)
        virtual.time += work
    virtual.lifecycle.turn()
    first = 0.03 + 0.5 + 0.009
    late = first + 0.009 + 0.02  # the third step had ended by then, and the fourth was begun only then
    assert [*ends, virtual.time] == pytest.approx([0.03, first, first + 0.009, late, late + 0.009])


def test_a_row_that_joins_is_in_the_step_after_the_one_under_way() -> None:
    virtual = started(spec(0, 10, 9))
    virtual.lifecycle.turn()
    virtual.lifecycle.turn()
    virtual.lifecycle.table.admit([spec(1, 10, 9)])
    turns = [[update.row_id for update in virtual.lifecycle.turn()] for _ in range(3)]
    assert turns == [[1], [0], [0, 1]]
    assert virtual.time == pytest.approx(0.03 + 0.009 + 0.03 + 2 * 0.009)


def test_rows_by_shape_get_all_tokens_of_the_step_under_way() -> None:
    terms = BatchPolicy(entry=Entry.SHAPE)
    virtual = started(spec(0, 10, 20), terms=terms)
    virtual.lifecycle.turn()
    virtual.lifecycle.turn()
    virtual.lifecycle.table.admit([spec(1, 30, 5)], terms)
    counts = [{one.row_id: len(one.token_ids) for one in virtual.lifecycle.turn()} for _ in range(2)]
    assert counts == [{1: 1, 0: 2}, {0: 1, 1: 1}]


def test_rows_of_a_closed_batch_get_nothing_after_their_end() -> None:
    virtual = started(spec(0, 10, 2), spec(1, 10, 5), terms=BatchPolicy(closed=True))
    told = [update.row_id for _, update in virtual.finish()]
    assert (told.count(0), told.count(1)) == (2, 5)


def test_a_row_that_is_cancelled_while_its_prompt_is_read_leaves_the_others_as_they_were() -> None:
    virtual = started(spec(0, 10, 3))
    assert virtual.lifecycle.next() is not None
    virtual.lifecycle.table.cancel([0])
    virtual.lifecycle.table.admit([spec(1, 10, 3)])
    assert [update.row_id for _, update in virtual.finish()] == [1, 1, 1]


@pytest.mark.parametrize("wanted", ["logprobs", "prompt_logprobs"])
def test_numbers_that_only_a_network_computes_are_refused_and_others_go_on(wanted: str) -> None:
    virtual = started(spec(0, 10, 3, **{wanted: 1}), spec(1, 10, 3))
    updates = [update for _, update in virtual.finish()]
    (refused,) = [update for update in updates if update.row_id == 0]
    assert refused.error == "a virtual device has no log-probabilities" and refused.by_client
    assert sum(len(update.token_ids) for update in updates if update.row_id == 1) == 3


# Beside the simulator


Arrivals = Sequence[tuple[float, RowSpec]]
Times = tuple[list[float], list[float], list[int]]


def judge(arrivals: Arrivals, told: Iterable[tuple[float, RowUpdate]]) -> Times:
    """When the first token of each row came, less when the row did; gaps between tokens; and how many there were."""
    came = defaultdict[RowId, list[float]](list)
    for time, update in told:
        came[update.row_id] += [time] * len(update.token_ids)
    first = [came[row.row_id][0] - at for at, row in arrivals]
    gaps = [gap for times in came.values() for gap in np.diff(times).tolist()]
    return first, gaps, [len(came[row.row_id]) for _, row in arrivals]


def play_virtual(arrivals: Arrivals, cost: Bilinear) -> Iterator[tuple[float, RowUpdate]]:
    virtual, left = Virtual(cost, ROWS), list(arrivals)
    while left or not virtual.lifecycle.table.idle:
        if virtual.lifecycle.table.idle:
            virtual.time = max(virtual.time, left[0][0])
        while left and left[0][0] <= virtual.time:
            virtual.lifecycle.table.admit([left.pop(0)[1]])
        for update in virtual.lifecycle.turn():
            yield virtual.time, update


def play_simulated(arrivals: Arrivals, cost: Bilinear) -> Iterable[tuple[float, RowUpdate]]:
    device = Device(capacity=100_000, rows=ROWS, cost=cost, max_prefill_tokens=CHUNK)
    for at, row in arrivals:
        device.run(at).post(Admit((row,)))
    return device.run().updates


def test_first_tokens_and_gaps_are_as_the_simulator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5 % on a light load; counts are equal. The simulator tells each step's tokens for once."""
    monkeypatch.setattr("engine.simulated.device.GLANCE", 1)
    draw, at, arrivals = random.Random(0), 0.0, list[tuple[float, RowSpec]]()
    for row_id in range(150):
        at += draw.expovariate(4)
        arrivals.append((at, spec(row_id, draw.randrange(16, 1000), draw.randrange(8, 200))))
    assert isinstance(H100_8B.cost, Bilinear)
    virtual, simulated = (judge(arrivals, play(arrivals, H100_8B.cost)) for play in (play_virtual, play_simulated))
    assert virtual[2] == simulated[2] == [row.sampling.max_tokens for _, row in arrivals]
    for ours, theirs in zip(virtual[:2], simulated[:2], strict=True):
        assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)
        assert np.percentile(ours, 99) == pytest.approx(np.percentile(theirs, 99), rel=0.05)
