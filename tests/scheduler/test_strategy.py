"""The table of strategies names parts that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from models.quantization import Quantization
from scheduler.assembly import BATCHERS, assemble
from scheduler.batch_order import BATCH_ORDERS
from scheduler.batching import Limits
from scheduler.bilinear import Bilinear
from scheduler.length.table import Length
from scheduler.memory import MEMORIES
from scheduler.order import ORDERS
from scheduler.placement import PLACEMENTS
from scheduler.preemption import PREEMPTIONS
from scheduler.serving_time import SERVING_TIMES
from scheduler.strategy import STRATEGIES, Strategy
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
    assert PARTS.keys() | {"name", "refill", "slices", "returns"} == {column.name for column in fields(Strategy)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_names_known_parts_and_is_found_by_its_name(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
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
    with pytest.raises(KeyError, match="nonsense"):
        assemble(replace(STRATEGIES["baton-pd"], **changes), LIMITS, PROFILE)


def test_a_strategy_that_estimates_serving_times_asks_for_a_profile() -> None:
    with pytest.raises(ValueError, match="magnus .* run `lengthwise profile` first"):
        assemble(STRATEGIES["magnus"], LIMITS)


def test_only_what_estimates_by_the_nearest_batches_learns_from_them() -> None:
    learners = [name for name in STRATEGIES if assemble(STRATEGIES[name], LIMITS, PROFILE).observer is not None]
    assert learners == ["magnus"]
