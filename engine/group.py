"""The rows of one command, how far they have come together, and which prompts are read together. Knows no tensor and no
device, so that the simulator groups as the engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from engine.messages import RowId, Terms

Rank: TypeAlias = tuple[int, int]
"""(priority, number of the admission); the least is the best."""


class Group:
    """The state that the rows of a closed batch share."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.iterations = 0
        """Decode iterations since the rows began to run together."""
        self.open: set[RowId] = set()
        """Rows that have neither ended nor been handed back."""
        self.unread: set[RowId] = set()
        """Rows whose prompts have not been read to their end."""

    @property
    def ready(self) -> bool:
        """Whether every row can start to run."""
        return not self.unread & self.open

    @property
    def slice_is_over(self) -> bool:
        return self.terms.iterations is not None and self.iterations >= self.terms.iterations


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
