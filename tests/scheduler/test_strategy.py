"""The table of strategies names parts that exist."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from scheduler.batching import BATCHERS, Limits
from scheduler.memory import MEMORIES
from scheduler.order import ORDERS
from scheduler.placement import PLACEMENTS
from scheduler.strategy import STRATEGIES, Strategy, assemble
from tests.scheduler.fakes import request, worker

LIMITS = Limits(group_tokens=100, prefill_ahead=2)
PARTS = {"order": ORDERS, "batching": BATCHERS, "placement": PLACEMENTS, "memory": MEMORIES}


def test_every_column_has_a_table() -> None:
    assert PARTS.keys() | {"name"} == {column.name for column in fields(Strategy)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_names_known_parts_and_is_found_by_its_name(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert [column for column, table in PARTS.items() if getattr(strategy, column) not in table] == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_assembled_strategy_serves_a_request(name: str) -> None:
    parts = assemble(STRATEGIES[name], LIMITS)
    one, idle = request(), worker()
    parts.batcher.add(one)
    assert list(parts.placement([idle])) == [idle]
    plan = parts.batcher.take(idle, 0.0)
    assert plan is not None and plan.requests == (one,)
    assert len(parts.batcher.waiting) == 0


@pytest.mark.parametrize("column", PARTS)
def test_a_part_that_does_not_exist_is_refused(column: str) -> None:
    changes: dict[str, str] = {column: "nonsense"}
    with pytest.raises(KeyError, match="nonsense"):
        assemble(replace(STRATEGIES["baton-pd"], **changes), LIMITS)
