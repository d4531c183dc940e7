"""The machines of the grid and the arena, each one executor; no rule's numbers were chosen on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from loadgen.simulate.node import Machine
from loadgen.simulate.presets import PRESETS
from scheduler.serving_time.bilinear import Bilinear

FAST_GPU = Bilinear(p1=3.2e-5, p2=0.0, p3=0.0, p4=0.006, d1=4.9e-8, d2=0.0, d3=0.0, d4=0.006)
"""A model of 8 billion parameters on an H100 by arithmetic: 16 GB of weights and 131 kB of K and V a token at 2.7e12
bytes a second, 1.6e10 operations a token at 5e14 a second."""

H100 = Machine(FAST_GPU, 400_000, 64, 2048)
GRID = ("A100, scarce memory", "A100, scarce slots", "small CPU", "H100")

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "A100, scarce memory": replace(PRESETS["a100-llama2-13b-hf"], workers=1, capacity_tokens=32_768),
        "A100, scarce slots": replace(PRESETS["a100-llama2-13b-ds"], workers=1, max_num_seqs=12),
        "small CPU": PRESETS["cpu-smollm2-135m"],
        "H100": H100,
        "H100, 256 slots": replace(H100, max_num_seqs=256),
    }
)
"""All machines; the last, with slots for nearly all that comes, is the arena's alone."""
