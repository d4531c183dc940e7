"""Who computes a pass on a CPU, by name; without torch, so that flags can name them."""

from __future__ import annotations

from enum import StrEnum


class Kernels(StrEnum):
    """A choice of kernels; values are those of the flag."""

    AUTO = "auto"  # this server's own where they can, else torch's
    NATIVE = "native"
    TORCH = "torch"
