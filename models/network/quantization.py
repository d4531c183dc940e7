"""The ways to keep the weights of linear layers, by name; without torch, so that flags can name them."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    """A way to keep the weights of linear layers; values are those of the flag."""

    NONE = "none"
    """Weights stay in the dtype of the model."""
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"


QUANTIZATIONS = tuple(one.value for one in Quantization)
"""The names as plain strings, which argparse shows as they are."""
