"""The limits that users set reach the batchers."""

from __future__ import annotations

from dataclasses import fields

from scheduler.batching.batcher import Limits
from scheduler.options import Scheduling


def test_every_option_of_the_scheduler_is_a_limit() -> None:
    """--wma-threshold did not exist, so that 50,000 stood for all machines and models."""
    given = {one.name: place for place, one in enumerate(fields(Scheduling), 1)} | {"recompute": True}
    limits = Limits.of(Scheduling(**given), group_tokens=1, max_num_seqs=1)  # type: ignore[arg-type]
    assert limits.aging.factor == given.pop("aging_factor")
    assert {name: getattr(limits, name) for name in given} == given
    assert Limits.of(Scheduling(), 1, 1).wma_threshold == 50_000
