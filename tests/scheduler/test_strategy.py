"""The table of strategies names parts that exist; in each of them, as predictions change while requests wait, nobody is
lost, doubled, or brought back."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from engine.messages import BatchPolicy, Entry
from models.errors import StrategyError
from models.network.quantization import Quantization
from scheduler.assembly import BATCHERS, ORDERS, SERVING_TIMES, assemble, find_strategy
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS
from scheduler.options import Scheduling
from scheduler.placement import PLACEMENTS
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES, Length, Strategy
from tests.scheduler.fakes import filled, request, rows_of, worker

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=2)
PROFILE = Bilinear(*(0.001 for _ in range(8)))
PARTS: dict[str, Mapping[Any, object]] = {
    "length": {str(one): one for one in Length},
    "order": ORDERS,
    "batching": BATCHERS,
    "placement": PLACEMENTS,
    "memory": MEMORIES,
    "serving_time": {None: None, **SERVING_TIMES},
    "preemption": PREEMPTIONS,
    "quantization": {None: None, **{str(one): one for one in Quantization}},
}
ELSEWHERE = {"length", "quantization"}
"""Put together by the server."""


def test_every_column_has_a_table() -> None:
    others = {"name", "refill", "slices", "returns", "calibrated", "shared"}
    assert PARTS.keys() | others == {column.name for column in fields(Strategy)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_names_known_parts_and_is_found_by_its_name(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert find_strategy(name) is strategy
    assert [column for column, table in PARTS.items() if getattr(strategy, column) not in table] == []


UNREAD = [
    *(("magnus", column, "nonsense", "'nonsense': is none of ") for column in sorted(PARTS.keys() - ELSEWHERE)),
    ("baton-pd", "slices", True, "batching='join' works only with False"),
    ("baton-pd", "refill", BatchPolicy(closed=True), "with batching='join' rows join running batches"),
    ("vs", "refill", BatchPolicy(), "rows join no running batch"),
    ("vs", "refill", BatchPolicy(closed=True, entry=Entry.SHAPE), "enter by no shape"),
    ("vs", "refill", BatchPolicy(closed=True, entry=Entry.EMBED_BLOCKING), "rows join no running batch"),
    ("scls", "slices", False, "batching='dp-adaptive' works only with True"),
    ("scls", "order", "out-of-turn", "compares keys, which its order has only within a queue"),
    ("scls", "order", "fair-sojourn", "compares keys, which its order has only within a queue"),
    ("srpt", "order", "hrrn", "compares keys, which its order has only within a queue"),
    ("magnus", "order", "sjf", "works only with fcfs"),
    ("vs", "serving_time", "nearest", "works only with None"),
    ("scls", "serving_time", "nearest", "works only with None, bilinear"),
    ("baton-pd", "memory", "slice", "works only with scale, fixed, whole, peak"),
    ("scls", "memory", "fixed", "works only with slice, deepspeed"),
    ("vs", "memory", "predicted", "works only with scale, fixed, whole, peak"),
    ("vs", "placement", "max-min", "which no serving_time makes"),
    ("vs", "preemption", "by-order", "works only with none"),
    ("ils", "preemption", "by-order", "works only with none"),
]


@pytest.mark.parametrize(("name", "column", "choice", "reason"), UNREAD)
def test_a_choice_that_no_part_would_read_is_refused(name: str, column: str, choice: object, reason: str) -> None:
    changes: dict[str, Any] = {column: choice}
    with pytest.raises(StrategyError, match=f"strategy {name}: {column}=.*{reason}"):
        assemble(replace(STRATEGIES[name], **changes), LIMITS, PROFILE)


def test_only_what_estimates_by_the_nearest_batches_learns_from_them() -> None:
    learners = [name for name in STRATEGIES if assemble(STRATEGIES[name], LIMITS, PROFILE).estimates.batches]
    assert learners == ["magnus"]


def test_published_systems_take_predictions_as_they_are_and_all_others_calibrate_them() -> None:
    published = {name for name, row in STRATEGIES.items() if row.length != "none" and not row.calibrated}
    assert published == {
        *("glp", "abp", "magnus", "ltr"),
        *(f"{name}-{mode}" for name in ("ssjf", "sjf-oracle") for mode in ("none", "dynamic", "continuous")),
    }


BOUNDED = BatchLimits(200, 0, options=Scheduling(max_batch_size=3)).within(2000, 500, 4)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_each_request_is_handed_out_once_whatever_becomes_known_of_it(strategy: str) -> None:
    requests = [request(row_id, 4 + row_id, arrival=float(row_id), predicted_length=10.0) for row_id in range(9)]
    batcher, taken = filled(assemble(STRATEGIES[strategy], BOUNDED, PROFILE).batcher, requests[:6]), list[int]()
    for now, more in ((10.0, requests[6:]), *((11.0 + turn, []) for turn in range(9))):
        taken += rows_of(batcher.take(worker(capacity=2000), now))
        waiting = set(filled(batcher, more).waiting)
        for place, one in enumerate(requests):
            one.predicted_length = 1.0 + 97 * place % 13
            batcher.revise(one, now)
        assert set(batcher.waiting) == waiting
    assert sorted(taken) == list(range(9))
