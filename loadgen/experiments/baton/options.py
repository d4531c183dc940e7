"""The flags of `lengthwise bench baton`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from loadgen.experiments.baton.paper import TARGETS
from loadgen.experiments.engine.options import BenchedModel
from models.options import Count, option

SCALE = Fraction(1, 16)
SHORT_SCALE = Fraction(1, 2)


def parse_scale(text: str) -> Fraction:
    """A positive number such as 0.25 or 1/16; raises ValueError."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number such as 0.25 or 1/16") from None
    if value <= 0:
        raise ValueError(f"{text} is not more than 0")
    return value


@dataclass(frozen=True, kw_only=True)
class BatonBench(BenchedModel):
    """Which tables to measure, and at which size."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("float32", "as for serve")
    target: tuple[str, ...] = option(
        (), "query sets, 1 or 2 (default: both)", nargs="+", choices=lambda: map(str, TARGETS)
    )
    scale: Fraction = option(SCALE, "factor of the paper's lengths in Target-1", parse=parse_scale, metavar="X")
    short_scale: Fraction = option(
        SHORT_SCALE, "factor of the paper's lengths in Target-2", parse=parse_scale, metavar="X"
    )
    num_queries: Count = option(60, "queries of Target-1; the paper's are 120")
    num_short_queries: Count = option(30, "queries of Target-2, as in the paper")
    rounds: Count = option(1, "runs of each; medians are shown")
    save_result: Path | None = option(None, "write figures and curves as JSON")
    save_report: Path | None = option(None, "write tables and plots as HTML")
