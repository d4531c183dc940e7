"""The table of ways to know a length, by the names that strategies use."""

from __future__ import annotations

from enum import StrEnum


class Length(StrEnum):
    """A strategy's column `length` (design, 4)."""

    NONE = "none"
    """Nobody predicts."""
    FOREST = "forest"
    """Magnus: sentence embeddings and a random forest."""
    PROXY = "proxy"
    """SSJF: a fine-tuned encoder with a small head."""
    ORACLE = "oracle"
    """The true length, which some requests bring along."""
