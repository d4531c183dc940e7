"""Linear layers for inference: a weight kept in the form that matrix kernels read, and nothing to train.

Each kind is one class. Which of them a network gets is `models.network.packing`'s business.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32
"""Weights of a row that share a scale and a zero in `Int4Linear`."""

TILES = (8, 4, 2)
"""Runs of 16 inputs that a CUDA kernel for four bits may read at a time, the best first."""

MANY = 20
"""Rows from which on it pays to widen weights of eight bits anew at each product, where no wide ones are kept."""


def round_up(tokens: int) -> int:
    """The least number of tokens that a pass is padded to: all up to 32, and 16 between a power of two and the next.

    oneDNN compiles a product for each number, which takes a millisecond or two and half a MiB. That of padding is a
    fortieth in the mean.
    """
    step = 1 << max(0, (tokens - 1).bit_length() - 5)
    return -(-tokens // step) * step


def pad_tokens(hidden: Tensor, tokens: int) -> Tensor:
    """(fewer, width) -> (tokens, width), zeros behind."""
    return hidden if len(hidden) == tokens else F.pad(hidden, (0, 0, 0, tokens - len(hidden)))


class InferenceLinear(nn.Module):
    """The common part of all kinds. Copies share the weight, which never changes."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias: Tensor | None = linear.bias
        self.weight_bytes = 0
        """Bytes of the weight that a product reads."""

    def __deepcopy__(self, memo: dict[int, Any]) -> InferenceLinear:
        twin = copy.copy(self)
        twin._forward_pre_hooks = OrderedDict()
        return twin

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        flat = inputs.reshape(-1, self.in_features)
        return self._multiply(flat).reshape(*inputs.shape[:-1], self.out_features)

    def _multiply(self, inputs: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features), bias included."""
        raise NotImplementedError


class PackedLinear(InferenceLinear):
    """The weight as it is, laid out by oneDNN. A plain layer's is re-ordered, or read badly, at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.weight_bytes = linear.weight.nbytes

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return output

    def add_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """residual + forward(inputs), in one operation."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, residual, self.packed, self.bias, "add")
        return output


class PairedLinear(PackedLinear):
    """A packed layer that never multiplies one row: oneDNN takes another kernel for it, whose sums differ."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return super().forward(_pair(inputs))[: len(inputs)]

    def add_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """residual + forward(inputs), in one operation."""
        return super().add_to(_pair(residual), _pair(inputs))[: len(inputs)]


def _pair(inputs: Tensor) -> Tensor:
    """Inputs (..., width), twice if they are one row."""
    return torch.cat((inputs, inputs)) if inputs.numel() == inputs.shape[-1] else inputs


class BeyondFloat16(ValueError):
    """A weight has numbers that float16 cannot hold."""


class HalfLinear(InferenceLinear):
    """A float32 layer whose weight is kept in float16 (FBGEMM): half the bytes to read, products still in float32.

    Nothing but what float16 cannot tell apart is lost. Raises BeyondFloat16 when it cannot hold the weight.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.detach()
        if weight.abs().max() > torch.finfo(torch.float16).max:
            raise BeyondFloat16("the weight has numbers that float16 cannot hold")
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, linear.bias)
        self.weight_bytes = 2 * weight.numel()

    def _multiply(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.quantized.linear_dynamic_fp16(inputs, self.packed)
        return output


def round_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Levels from -127 to 127 of weights (out, in) in float32, and the scale of each output (out,) in bfloat16."""
    scales = (weight.abs().amax(dim=1) / 127).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16()
    return (weight / scales[:, None]).round_().clamp_(-127, 127), scales


def round_to_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels n from 0 to 15 of weights (out, in) in float32, (out, in / GROUP, GROUP), and the scale s and zero z of
    each group, (out, in / GROUP), which bfloat16 holds: a weight is s(n - 8) + z."""
    groups = weight.reshape(len(weight), -1, GROUP)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale = ((high - low) / 15).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16().float()
    zero = (low + 8 * scale).bfloat16().float()
    return ((groups - zero[..., None]) / scale[..., None] + 8).round_().clamp_(0, 15), scale, zero


class _IntegerLinear(InferenceLinear):
    """Weights in few bits, inputs in bfloat16: only what is kept in memory is rounded much.

    torch's kernels for such weights go through them row by row. They are the fastest for few rows; many rows have a
    plain product with `wide`, the same weight in the layer's dtype and in oneDNN's layout, where that is kept as well.
    Both sides compute one function up to rounding: inputs and outputs are rounded to bfloat16 on both, sums are in
    float32 on both, and `wide` is the very numbers of the levels, rounded once where its subclass says so.
    """

    most_few: ClassVar[int]
    """Rows up to which the kernel for few bits is the faster one."""

    def __init__(self, linear: nn.Linear, *, keep_wide: bool = False) -> None:
        """Takes a layer whose dtype `models.network.packing.packs`, if it shall `keep_wide`."""
        super().__init__(linear)
        self.levels, self.scales, wide = self._pack(linear.weight.detach().float())
        self.wide: Tensor | None = None
        if keep_wide:
            self.wide = torch.ops.mkldnn._reorder_linear_weight(wide.to(linear.weight.dtype))
        self.weight_bytes = self.levels.nbytes + self.scales.nbytes

    def _multiply(self, inputs: Tensor) -> Tensor:
        rounded = inputs.bfloat16()  # also where it is widened again: an answer must not depend on its neighbours
        if self._is_few(len(inputs)):
            output = self._narrow(rounded)
        else:
            output = self._multiply_wide(rounded.to(inputs.dtype)).bfloat16()
        output = output.to(inputs.dtype)
        return output if self.bias is None else output + self.bias

    def _is_few(self, rows: int) -> bool:
        return self.wide is None or rows <= self.most_few

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Levels and scales as the kernel reads them, and (out, in) the weight with wider numbers."""
        raise NotImplementedError

    def _narrow(self, inputs: Tensor) -> Tensor:
        """The product of inputs in bfloat16 with the weight in few bits."""
        raise NotImplementedError

    def _multiply_wide(self, inputs: Tensor) -> Tensor:
        """The product of inputs in the layer's dtype with `wide`."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.wide, None, "none", [], "")
        return output


class Int8Linear(_IntegerLinear):
    """Eight bits a weight, and one scale for each output.

    levels, wide  whole numbers of -127 to 127, which bfloat16 holds as they are
    scales        (out), applied to the sums: by the kernel before they are rounded, on the wide side after
    """

    most_few = 3

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels, scales = round_to_int8(weight)
        return levels.to(torch.int8), scales, levels

    def _is_few(self, rows: int) -> bool:
        return rows <= (self.most_few if self.wide is not None else MANY)

    def _narrow(self, inputs: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(inputs, self.levels, self.scales)

    def _multiply_wide(self, inputs: Tensor) -> Tensor:
        product = (
            F.linear(inputs, self.levels.to(inputs.dtype)) if self.wide is None else super()._multiply_wide(inputs)
        )
        return product.mul_(self.scales)


class Int4Linear(_IntegerLinear):
    """Four bits a weight, and a scale and a zero for each 32 of an output's.

    levels  packed, whole numbers n of 0-15
    scales  (in / 32, out, 2): scale s and zero z, of n's weight s(n - 8) + z
    wide    these weights; in bfloat16 each rounded once, which changes it by 1/512 of itself at most
    """

    most_few = 8

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels, scale, zero = round_to_int4(weight)
        packed = self._pack_levels(levels.flatten(1).to(torch.int32))
        wide = levels.sub_(8).mul_(scale[..., None]).add_(zero[..., None]).flatten(1)
        return packed, torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().bfloat16(), wide

    def _pack_levels(self, levels: Tensor) -> Tensor:
        """Levels (out, in) in int32, as the kernel reads them."""
        packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        return packed

    def _narrow(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, self.levels, GROUP, self.scales)
        return output


class CudaInt4Linear(Int4Linear):
    """`Int4Linear` on a CUDA device: the same levels, scales and zeros, read by a kernel for tensor cores."""

    def _pack_levels(self, levels: Tensor) -> Tensor:
        tiles = next(tiles for tiles in TILES if self.in_features % (16 * tiles) == 0)
        pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
        packed: Tensor = torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)
        return packed

    def _narrow(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.aten._weight_int4pack_mm(inputs, self.levels, GROUP, self.scales)
        return output


FP8 = torch.float8_e4m3fn


def round_to_fp8(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers (rows, width) in eight bits, the largest of each row as the largest that these hold, and its scale,
    (rows, 1) in float32."""
    largest = torch.finfo(FP8).max
    wide = numbers.float()
    scales = (wide.abs().amax(dim=1, keepdim=True) / largest).clamp_(min=torch.finfo(torch.float32).tiny)
    return (wide / scales).clamp_(-largest, largest).to(FP8), scales  # beyond, the conversion yields NaN


class Fp8Linear(InferenceLinear):
    """Weights and inputs in eight bits with an exponent, with a scale for each output and each row of inputs.

    levels  (out, in)
    scales  (out, 1)
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.levels, self.scales = round_to_fp8(linear.weight.detach())
        self.weight_bytes = self.levels.nbytes + self.scales.nbytes

    def _multiply(self, inputs: Tensor) -> Tensor:
        if not len(inputs):  # of which the product refuses the scales
            return inputs.new_empty(0, self.out_features)
        rounded, scales = round_to_fp8(inputs)
        output = torch._scaled_mm(rounded, self.levels.t(), scales, self.scales.t(), out_dtype=torch.bfloat16)
        output = output.to(inputs.dtype)
        return output if self.bias is None else output + self.bias
