"""How the weights of linear layers can be kept, by name. Knows no tensor, so that flags can name them without one."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    """How the weights of linear layers are kept; values as the flag has them."""

    NONE = "none"
    """As the dtype says."""
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"


QUANTIZATIONS = tuple(one.value for one in Quantization)
"""As plain strings, which argparse shows as they are."""
