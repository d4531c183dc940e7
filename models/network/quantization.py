"""Weight formats and CPU kernels by name; torch-free, for flags."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    """Values are the flag's."""

    NONE = "none"  # the model's dtype
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"  # e4m3, inputs too: CUDA


# lossy; the head keeps more bits than INT4, or its own on CUDA
FEW_BITS = frozenset({Quantization.INT8, Quantization.INT4, Quantization.FP8})

QUANTIZATIONS = tuple(one.value for one in Quantization)  # plain strings, which argparse shows as they are


class Kernels(StrEnum):
    """Values are the flag's."""

    AUTO = "auto"  # our own where they can, else torch's
    NATIVE = "native"
    TORCH = "torch"
