"""The table of strategies names parts that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from engine.messages import Entry, Terms
from models.network.quantization import Quantization
from scheduler.assembly import BATCHERS, ORDERS, SERVING_TIMES, assemble, find_strategy
from scheduler.batching.batcher import Limits
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS
from scheduler.outside import StrategyError
from scheduler.placement.executors import PLACEMENTS
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import BATCHINGS, KEYLESS, STRATEGIES, Length, Strategy
from scheduler.waiting.hrrn import BATCH_ORDERS
from scheduler.waiting.prices import device_prices
from tests.scheduler.fakes import request, worker

LIMITS = Limits(group_tokens=100, prefill_ahead=2)
PROFILE = Bilinear(*(0.001 for _ in range(8)))
PARTS: dict[str, Mapping[Any, object]] = {
    "length": {str(one): one for one in Length},
    "order": ORDERS,
    "batching": BATCHERS,
    "placement": PLACEMENTS,
    "memory": MEMORIES,
    "batch_order": BATCH_ORDERS,
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


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_assembled_strategy_serves_a_request(name: str) -> None:
    parts = assemble(STRATEGIES[name], LIMITS, PROFILE)
    one, idle = request(), worker()
    parts.batcher.add(one, 0.0)
    assert list(parts.placement([idle])) == [idle]
    plan = parts.batcher.take(idle, 0.0)
    assert plan is not None and plan.requests == (one,)
    assert len(parts.batcher.waiting) == 0


@pytest.mark.parametrize("column", sorted(PARTS.keys() - ELSEWHERE))
def test_a_part_that_does_not_exist_is_refused(column: str) -> None:
    changes: dict[str, Any] = {column: "nonsense"}
    reader = STRATEGIES["magnus" if column in ("batch_order", "serving_time") else "baton-pd"]
    with pytest.raises(StrategyError, match=f"{column}='nonsense' is none of "):
        assemble(replace(reader, **changes), LIMITS, PROFILE)


def test_the_rules_know_every_batching() -> None:
    assert BATCHERS.keys() == BATCHINGS
    assert {name for name in ORDERS if not ORDERS[name](LIMITS, device_prices).by_key} | {"fair-sojourn"} == KEYLESS


@pytest.mark.parametrize(
    ("name", "column", "choice", "reason"),
    [
        ("baton-pd", "slices", True, "only closed batches end after a slice"),
        ("baton-pd", "refill", Terms(closed=True), "rows join running batches with batching join, round-robin-join"),
        ("vs", "refill", Terms(), "and only with these"),
        ("vs", "refill", Terms(closed=True, entry=Entry.SHAPE), "none enters by shape"),
        ("vs", "refill", Terms(closed=True, entry=Entry.EMBED_BLOCKING), "none enters by shape or makes rows wait"),
        ("scls", "slices", False, "plans batches that end after a slice"),
        ("scls", "order", "out-of-turn", "compares keys, which this order has not"),
        ("srpt", "order", "hrrn", "compares keys, which this order has not"),
        ("magnus", "order", "sjf", "has an order of its own"),
        ("baton-pd", "batch_order", "hrrn", "only batching wma, wma-fixed arranges batches"),
        ("abp", "batch_order", "hrrn", "no serving_time estimates"),
        ("vs", "serving_time", "nearest", "does not ask this estimate"),
        ("scls", "serving_time", "nearest", "does not ask this estimate"),
        ("baton-pd", "memory", "slice", "asks whether a slice fits, and no other does"),
        ("scls", "memory", "fixed", "asks whether a slice fits, and no other does"),
        ("vs", "memory", "predicted", "does not ask with predicted lengths"),
        ("vs", "placement", "max-min", "compares predicted loads"),
        ("vs", "preemption", "by-order", "any request may join any batch"),
        ("ils", "preemption", "by-order", "any request may join any batch"),
    ],
)
def test_a_choice_that_no_part_would_read_is_refused(name: str, column: str, choice: object, reason: str) -> None:
    changes: dict[str, Any] = {column: choice}
    with pytest.raises(ValueError, match=f"strategy '{name}': {column}=.*: .*{reason}"):
        replace(STRATEGIES[name], **changes)


def test_only_what_estimates_by_the_nearest_batches_learns_from_them() -> None:
    learners = [name for name in STRATEGIES if assemble(STRATEGIES[name], LIMITS, PROFILE).learning]
    assert learners == ["magnus"]


def test_strategies_name_their_predictor() -> None:
    assert [str(one) for one in Length] == ["none", "own-embeddings", "forest", "proxy", "oracle"]


def test_published_systems_take_predictions_as_they_are_and_all_others_calibrate_them() -> None:
    published = {name for name, row in STRATEGIES.items() if row.length != "none" and not row.calibrated}
    assert published == {
        *("glp", "abp", "magnus", "ltr"),
        *(f"{name}-{mode}" for name in ("ssjf", "sjf-oracle") for mode in ("none", "dynamic", "continuous")),
    }
