"""The machines of the grid, each one executor; no rule's numbers were chosen on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadgen.simulate.presets import PRESETS
from loadgen.simulate.simulation import Machine
from scheduler.serving_time.bilinear import Bilinear


@dataclass(frozen=True, slots=True)
class GridMachine:
    """A machine, and whether the scheduler knows its profile."""

    machine: Machine
    profiled: bool = True

    @property
    def profile(self) -> Bilinear | None:
        """The profile as far as the scheduler knows it."""
        cost = self.machine.cost
        return cost if self.profiled and isinstance(cost, Bilinear) else None


SMALL_CPU = Bilinear(p1=9e-4, p2=0.0, p3=0.0, p4=0.02, d1=1.15e-6, d2=8e-4, d3=0.0, d4=0.0405)
"""SmolLM2-135M in bfloat16 on two cores by arithmetic: 2.7e8 operations a token at 3e11 a second, 23 kB of K and V a
token at 20 GB/s; iterations of 1, 8, 32 and 64 rows take about 41, 47, 66 and 92 ms."""

FAST_GPU = Bilinear(p1=3.2e-5, p2=0.0, p3=0.0, p4=0.006, d1=4.9e-8, d2=0.0, d3=0.0, d4=0.006)
"""A model of 8 billion parameters on an H100 by arithmetic: 16 GB of weights and 131 kB of K and V a token at 2.7e12
bytes a second, 1.6e10 operations a token at 5e14 a second."""

MACHINES: Mapping[str, GridMachine] = MappingProxyType(
    {
        "A100, scarce memory": GridMachine(replace(PRESETS["a100-llama2-13b-hf"], workers=1)),
        "small CPU": GridMachine(Machine(SMALL_CPU, 32 * 2048, 32, 2048)),
        "H100 without a profile": GridMachine(Machine(FAST_GPU, 400_000, 64, 2048), profiled=False),
    }
)
