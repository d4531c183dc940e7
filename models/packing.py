"""Linear layers whose weights are laid out once the way the CPU's matrix kernels read them.

A plain layer's weights are re-ordered, or read badly, at every call; with few rows that is a good part of the call.
It knows no network beyond its linear layers, and of the CPU only what decides about them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A linear layer for inference whose weight is packed by oneDNN. Same results up to rounding."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer(
            "packed", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()), persistent=False
        )
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return output


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16; others would convert back and forth."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packed layers exist for this dtype on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and computes_bfloat16())


def pack(network: nn.Module) -> None:
    """Replace every plain linear layer of a network on a CPU; frees the weights that nothing else uses."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
