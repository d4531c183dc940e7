"""The ways to keep the weights of linear layers, and who computes a pass on a CPU, by name; without torch, so that
flags can name them."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    """A way to keep the weights of linear layers; values are those of the flag."""

    NONE = "none"
    """Weights stay in the dtype of the model."""
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"
    """Eight bits with an exponent, e4m3, inputs too: for CUDA."""


FEW_BITS = frozenset({Quantization.INT8, Quantization.INT4, Quantization.FP8})
"""Those that a network's own numbers are rounded for; its head is kept in more bits than INT4, or as it is on CUDA."""

QUANTIZATIONS = tuple(one.value for one in Quantization)
"""The names as plain strings, which argparse shows as they are."""


class Kernels(StrEnum):
    """A choice of kernels; values are those of the flag."""

    AUTO = "auto"  # this server's own where they can, else torch's
    NATIVE = "native"
    TORCH = "torch"
