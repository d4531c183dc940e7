"""The two tables of Baton (section 5.2): their queries, their methods, and the seconds that the authors report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

BENCHMARK, PD, BATON, BATON_PD = "Benchmark", "PD", "Baton", "Baton-PD"

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {BENCHMARK: "benchmark", PD: "pd", BATON: "baton", BATON_PD: "baton-pd"}
)
"""The names of the methods in our own table of strategies."""

Range: TypeAlias = tuple[int, int]
"""Least and most tokens before scaling."""

LONG: Range = (3600, 4400)
""""Around 4,000 words" (section 5.1); a word counts as a token here."""
SHORT: Range = (36, 400)
""""A few dozen to 400 words"."""
SHORTER: Range = (36, 200)
"""Target-2's "a few dozen to 200 words"."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of the tables. Both were measured with llama2-7b-chat in 16 bits."""

    table: str
    device: str
    queries: int
    noun: str
    mix: tuple[tuple[Range, Range], ...]
    """Input and output of queries, in proportion."""
    seconds: Mapping[int, Mapping[str, float]]
    """Completion times by batch size and method."""
    where: str
    doubled: int | None = None
    """The batch size at which sequences are twice as long (section 5.2.1)."""


TARGETS: Mapping[int, Target] = MappingProxyType(
    {
        1: Target(
            table="Table 1",
            device="an A6000",
            queries=120,
            noun="queries",
            # Summaries, articles and two short questions, that is 1:1:2.
            mix=((LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (SHORT, SHORT)),
            seconds={
                4: {BENCHMARK: 21_901, PD: 21_781, BATON: 20_549, BATON_PD: 11_771},
                8: {BENCHMARK: 6_619, PD: 6_577, BATON: 3_424, BATON_PD: 2_654},
            },
            where="5.2.1, Table 1",
            doubled=4,
        ),
        2: Target(
            table="Table 2",
            device="a 4090",
            queries=30,
            noun="short queries",
            mix=((SHORTER, SHORTER),),
            seconds={
                2: {BENCHMARK: 161.77, BATON: 83.43},
                4: {BENCHMARK: 92.68, BATON: 49.61},
                6: {BENCHMARK: 61.70, BATON: 37.25},
                8: {BENCHMARK: 50.07, BATON: 31.08},
                10: {BENCHMARK: 40.45, BATON: 30.99},
            },
            where="5.2.2, Table 2",
        ),
    }
)
