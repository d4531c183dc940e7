"""Shapes and prompts of the rows that engines are compared on."""

from __future__ import annotations

import random

import pytest

from loadgen.experiments.engine.bench import draw_ragged_shapes, draw_rows, longest, shape_of
from models.errors import UserError


def test_ragged_shapes_differ_in_every_length_and_use_the_whole_range() -> None:
    inputs, outputs = zip(*draw_ragged_shapes(random.Random(0), 11, 5, 15), strict=True)
    assert sorted(inputs) == sorted(outputs) == list(range(5, 16))
    assert inputs != outputs


def test_more_rows_than_lengths_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="--num-requests"):
        draw_ragged_shapes(random.Random(0), 12, 5, 15)


def test_even_rows_have_prompts_of_their_own() -> None:
    rows = draw_rows(random.Random(0), 300, [(6, 3)] * 8)
    assert {shape_of(row) for row in rows} == {(6, 3)}
    assert len({row.prompt for row in rows}) == 8


def test_columns_hold_the_longest_prompt_with_the_longest_output() -> None:
    assert longest([(9, 2), (3, 7)]) == 16
