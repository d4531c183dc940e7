"""What the composition root decides about an executor before there is one."""

from __future__ import annotations

import sys

import pytest

from server.cli.config import ServeConfig
from server.process.executors import NICENESS, niceness


@pytest.mark.parametrize(
    ("platform", "strategy", "expected"),
    [
        ("linux", "lengthwise", NICENESS),
        ("linux", "ssjf-continuous", NICENESS),
        ("linux", "baton-pd", 0),
        ("linux", "vs", 0),
        ("darwin", "lengthwise", 0),
    ],
)
def test_threads_that_compute_give_way_where_a_process_predicts_beside_them(
    monkeypatch: pytest.MonkeyPatch, platform: str, strategy: str, expected: int
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert niceness(ServeConfig(strategy=strategy)) == expected
