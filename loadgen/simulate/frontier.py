"""Who is worth choosing among strategies that trade one figure for another."""

from __future__ import annotations

from collections.abc import Mapping


def find_frontier(rows: Mapping[str, tuple[float, ...]]) -> set[str]:
    """The names whose figures, of which less is better, no other name undercuts in one without exceeding in another."""
    return {
        name
        for name, own in rows.items()
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in rows.values())
    }
