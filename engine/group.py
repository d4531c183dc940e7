"""The rows of one order, and how far they have come together. Knows no tensor and no device."""

from __future__ import annotations

from engine.messages import RowId, Terms


class Group:
    """What closed batches need to know of their rows."""

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
