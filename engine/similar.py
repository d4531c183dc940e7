"""Which prompts are read together. Knows lengths only, so that the simulator groups as the engine does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

RowT = TypeVar("RowT")

MOST_PADDING = 0.25
"""Part of a prefill group's cells that may be padding."""


def similar_lengths(rows: Iterable[RowT], length: Callable[[RowT], int], max_tokens: int) -> list[list[RowT]]:
    """Rows to prefill together, longest first: no group has more than `max_tokens` cells, unless it is a single row,
    nor more padding than MOST_PADDING.
    """
    groups: list[list[RowT]] = []
    for row in sorted(rows, key=lambda row: -length(row)):
        if groups and _similar([length(other) for other in (*groups[-1], row)], max_tokens):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _similar(lengths: list[int], max_tokens: int) -> bool:
    cells = len(lengths) * max(lengths)
    return cells <= max_tokens and cells - sum(lengths) <= MOST_PADDING * cells
