"""The machines of Baton's tables, as far as its text and arithmetic tell. Knows no query.

A prefill costs p1 a token and p4, an iteration d1 a cell and d4; p4 = d4, since both go through all layers once. p1 is
arithmetic: 2 operations for each of 6.74e9 parameters and token, at half of what the tensor cores can do.
"""

from __future__ import annotations

from loadgen.simulate.simulation import Machine
from scheduler.serving_time.bilinear import Bilinear

PASS = 0.07066
CELL = 1.133e-6
"""Seconds, solved for: with them Benchmark takes Table 2's 161.77 s at 2 rows, and Table 1's 6,619 s at 8."""


def _machine(token: float) -> Machine:
    cost = Bilinear(p1=token, p2=0.0, p3=0.0, p4=PASS, d1=CELL, d2=0.0, d3=0.0, d4=PASS)
    return Machine(cost, capacity_tokens=65_536, max_num_seqs=16, context_length=65_536, max_prefill_tokens=8192)


A6000_LLAMA2_7B = _machine(1.742e-4)
"""154.8e12 operations/s in 16 bits."""
RTX4090_LLAMA2_7B = _machine(1.632e-4)
"""165.2e12 operations/s in 16 bits."""
