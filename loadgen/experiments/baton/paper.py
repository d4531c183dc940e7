"""The figures that Baton's authors report (section 5.2), and what they measured them with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BENCHMARK, PD, BATON, BATON_PD = "Benchmark", "PD", "Baton", "Baton-PD"

TABLE_1: Mapping[int, Mapping[str, float]] = MappingProxyType(
    {
        4: {BENCHMARK: 21_901, PD: 21_781, BATON: 20_549, BATON_PD: 11_771},
        8: {BENCHMARK: 6_619, PD: 6_577, BATON: 3_424, BATON_PD: 2_654},
    }
)
"""Target-1: seconds by batch size and method. llama2-7b-chat in 16 bits on an NVIDIA A6000."""

TABLE_2: Mapping[int, Mapping[str, float]] = MappingProxyType(
    {
        2: {BENCHMARK: 161.77, BATON: 83.43},
        4: {BENCHMARK: 92.68, BATON: 49.61},
        6: {BENCHMARK: 61.70, BATON: 37.25},
        8: {BENCHMARK: 50.07, BATON: 31.08},
        10: {BENCHMARK: 40.45, BATON: 30.99},
    }
)
"""Target-2: the same on an NVIDIA 4090."""

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {BENCHMARK: "benchmark", PD: "pd", BATON: "baton", BATON_PD: "baton-pd"}
)
"""What the methods are called in our own table of strategies."""

LONG = (3600, 4400)
""""Around 4,000 words" (section 5.1); a word counts as a token here."""
SHORT = (36, 400)
""""A few dozen to 400 words"."""
SHORTER = (36, 200)
"""Target-2's "a few dozen to 200 words"."""

TARGET_1_QUERIES = 120
TARGET_2_QUERIES = 30

DOUBLED = 4
"""The batch size at which Target-1's sequences are twice as long (section 5.2.1)."""
