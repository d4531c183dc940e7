"""The names of the table."""

from __future__ import annotations

from scheduler.length.predictors import Length


def test_strategies_name_their_predictor() -> None:
    assert [str(one) for one in Length] == ["none", "forest", "proxy", "oracle"]
