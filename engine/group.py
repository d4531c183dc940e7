"""The rows of one command, and how far they have come together. Knows no tensor and no device."""

from __future__ import annotations

from typing import TypeAlias

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
