"""Names of weight formats and kernels."""

from enum import StrEnum


class Quantization(StrEnum):
    NONE = "none"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"  # e4m3, with inputs: CUDA


# lossy; the head keeps more
FEW_BITS = frozenset({Quantization.INT8, Quantization.INT4, Quantization.FP8})

QUANTIZATIONS = tuple(one.value for one in Quantization)  # for argparse


class Kernels(StrEnum):
    AUTO = "auto"  # ours where possible
    NATIVE = "native"
    TORCH = "torch"
