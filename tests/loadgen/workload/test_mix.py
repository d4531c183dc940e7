"""How mixes are written and shared out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.flags import Part, parse_part
from loadgen.workload.requests import share_out
from models.errors import UserError


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("builtin:0.7", Part("builtin", None, 0.7)),
        ("azure=a.csv:3", Part("azure", Path("a.csv"), 3.0)),
        ("jsonl=C:/odd=name, x.jsonl:1e1", Part("jsonl", Path("C:/odd=name, x.jsonl"), 10.0)),
    ],
)
def test_a_part_names_its_dataset_file_and_weight(text: str, part: Part) -> None:
    assert parse_part(text) == part


@pytest.mark.parametrize(
    "text",
    ["builtin", "builtin:", ":1", "azure=:1", "builtin:0", "builtin:-1", "builtin:x", "builtin:inf", "a:nan", ""],
)
def test_a_part_that_is_not_understood_is_quoted(text: str) -> None:
    with pytest.raises(UserError, match="--mix:.*NAME=FILE:WEIGHT") as caught:
        parse_part(text)
    assert repr(text) in str(caught.value)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 1000))
def test_shares_add_up_and_are_within_one_of_exact(weights: list[float], total: int) -> None:
    shares = share_out(weights, total)
    assert sum(shares) == total
    assert all(
        abs(share - total * weight / sum(weights)) < 1.000001 for share, weight in zip(shares, weights, strict=True)
    )
