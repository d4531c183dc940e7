"""What an experiment has measured of sides that take turns: kept by round, told at once, compared at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np

SHARES = (0.5, 0.9, 0.99)
"""Quantiles that are told, of those for which there are values enough."""

JUDGED = ("batch", "beside")
"""Sides that are compared with the others."""

Sides: TypeAlias = dict[str, list[Sequence[float]]]
"""Side -> values of each round."""


class Figures:
    """What was measured of each side, in seconds if nothing else is said."""

    def __init__(self) -> None:
        self._found: dict[str, Sides] = {}

    def note(self, figure: str, side: str, values: Sequence[float]) -> None:
        """Keep and tell the values of a round."""
        self._found.setdefault(figure, {}).setdefault(side, []).append(values)
        print(f"{figure}, {side}: {json.dumps(find_quantiles(values))}", file=sys.stderr, flush=True)

    def report(self) -> dict[str, object]:
        """Quantiles of all rounds, and how they compare with those of other sides, also round by round."""
        return {figure: _compare(sides) for figure, sides in self._found.items()}


def _compare(sides: Sides) -> dict[str, object]:
    told: dict[str, object] = {side: find_quantiles([*chain(*rounds)]) for side, rounds in sides.items()}
    for judged in JUDGED:
        for other in sides.keys() - {judged} if judged in sides else ():
            each = zip(sides[judged], sides[other], strict=False)  # the last round may have been broken off
            told[f"{judged} / {other}"] = find_ratios([*chain(*sides[judged])], [*chain(*sides[other])])
            told[f"{judged} / {other}, by round"] = [find_ratios(*one) for one in each]
    return told


def find_quantiles(values: Sequence[float]) -> dict[str, float]:
    """Quantiles of values, by name: p99 is that of 0.99."""
    told = [share for share in SHARES if share == SHARES[0] or len(values) * (1 - share) >= 1]
    return {f"p{share * 100:g}": float(f"{np.quantile(values, share):.4g}") for share in told}


def find_ratios(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Quantiles of values over those of others."""
    above, below = find_quantiles(values), find_quantiles(others)
    return {name: round(above[name] / below[name], 3) for name in above.keys() & below.keys()}
