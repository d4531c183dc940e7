"""Workloads mixed by weight: how the mix is written, and how many requests each part gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.errors import UserError


@dataclass(frozen=True, slots=True)
class Part:
    """One dataset and its share; weights count relative to each other."""

    name: str
    path: Path | None = None
    weight: float = 1.0


def parse_part(text: str) -> Part:
    """`NAME:WEIGHT` or `NAME=FILE:WEIGHT`; raises UserError."""
    dataset, colon, weight = text.rpartition(":")
    name, equals, file = dataset.partition("=")
    try:
        share = float(weight)
    except ValueError:
        share = math.nan
    if not (colon and name and share > 0 and math.isfinite(share)) or (equals and not file):
        raise UserError(f"--mix: {text!r} must be NAME:WEIGHT or NAME=FILE:WEIGHT, the weight above 0")
    return Part(name, Path(file) if file else None, share)


def counts(weights: Sequence[float], total: int) -> list[int]:
    """`total` shared out by weight, to within one of the exact shares (largest remainder)."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in by_remainder[: total - sum(shares)]:
        shares[place] += 1
    return shares
