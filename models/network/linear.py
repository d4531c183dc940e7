"""Linear layers in kernels' layouts; packing.py chooses."""

import copy
from collections import OrderedDict
from math import inf
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32  # weights with one scale and zero

TILES = (8, 4, 2)  # of CUDA's 4-bit kernel, best first

MANY = 20  # rows from which widening 8-bit weights pays


def round_up(tokens: int) -> int:
    """To 32, then 16 steps an octave: oneDNN compiles for each size, a millisecond or two and half a MiB; padding
    costs a fortieth.
    """
    step = 1 << max(0, (tokens - 1).bit_length() - 5)
    return -(-tokens // step) * step


def pad_tokens(hidden: Tensor, tokens: int) -> Tensor:
    """(fewer, width) -> (tokens, width)."""
    return hidden if len(hidden) == tokens else F.pad(hidden, (0, 0, 0, tokens - len(hidden)))


class InferenceLinear(nn.Module):
    """Copies share the weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias: Tensor | None = linear.bias
        self.weight_bytes = 0  # by a product

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy.copy(self)
        twin._forward_pre_hooks = OrderedDict()
        return twin

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return self._multiply(inputs.reshape(-1, self.in_features)).reshape(*inputs.shape[:-1], self.out_features)

    def _multiply(self, inputs: Tensor) -> Tensor:
        """(rows, in_features) -> (rows, out_features), with bias."""
        raise NotImplementedError


class PackedLinear(InferenceLinear):
    """Ordered for oneDNN, else reordered at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.weight_bytes = linear.weight.nbytes

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], ""))

    def add_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """residual + forward(inputs), fused."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise.binary(inputs, residual, self.packed, self.bias, "add"))


class HalfLinear(InferenceLinear):
    """Float16 weights, float32 products (FBGEMM)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        weight = linear.weight.detach()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, linear.bias)
        self.weight_bytes = 2 * weight.numel()

    def _multiply(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.quantized.linear_dynamic_fp16(inputs, self.packed))


def round_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """-127 to 127 (out, in), and bfloat16 scales (out,)."""
    scales = (weight.abs().amax(dim=1) / 127).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16()
    return (weight / scales[:, None]).round_().clamp_(-127, 127), scales


def round_to_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """n in 0 to 15, (out, in / GROUP, GROUP), bfloat16 scale s and zero z, (out, in / GROUP): weight s(n - 8) + z."""
    groups = weight.reshape(len(weight), -1, GROUP)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale = ((high - low) / 15).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16().float()
    zero = (low + 8 * scale).bfloat16().float()
    return ((groups - zero[..., None]) / scale[..., None] + 8).round_().clamp_(0, 15), scale, zero


class _IntegerLinear(InferenceLinear):
    """Few-bit weights, bfloat16 inputs, float32 sums. torch's kernels suit few rows; many use `wide`, the same
    function, where kept.
    """

    most_few: ClassVar[int]  # rows of the narrow kernel beside wide weights
    most_alone: ClassVar[float] = inf  # and without

    def __init__(self, linear: nn.Linear, *, keep_wide: bool = False) -> None:
        """`keep_wide` needs `packing.packs`."""
        super().__init__(linear)
        self.levels, self.scales, wide = self._pack(linear.weight.detach().float())
        self.wide: Tensor | None = None
        if keep_wide:
            self.wide = torch.ops.mkldnn._reorder_linear_weight(wide.to(linear.weight.dtype))
        self.weight_bytes = self.levels.nbytes + self.scales.nbytes

    def _multiply(self, inputs: Tensor) -> Tensor:
        rounded = inputs.bfloat16()  # regardless of neighbours
        if len(inputs) <= (self.most_alone if self.wide is None else self.most_few):
            output = self._narrow(rounded)
        else:
            output = self._multiply_wide(rounded.to(inputs.dtype)).bfloat16()
        output = output.to(inputs.dtype)
        return output if self.bias is None else output + self.bias

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For the kernel, and wide (out, in)."""
        raise NotImplementedError

    def _narrow(self, inputs: Tensor) -> Tensor:
        """bfloat16 inputs."""
        raise NotImplementedError

    def _multiply_wide(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(inputs, self.wide, None, "none", [], ""))


class Int8Linear(_IntegerLinear):
    """levels, wide  -127 to 127, exact in bfloat16
    scales        (out), applied to sums
    """

    most_few, most_alone = 3, MANY

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels, scales = round_to_int8(weight)
        return levels.to(torch.int8), scales, levels

    def _narrow(self, inputs: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(inputs, self.levels, self.scales)

    def _multiply_wide(self, inputs: Tensor) -> Tensor:
        if self.wide is None:
            return F.linear(inputs, self.levels.to(inputs.dtype)).mul_(self.scales)
        return super()._multiply_wide(inputs).mul_(self.scales)


class Int4Linear(_IntegerLinear):
    """levels  packed, n in 0 to 15
    scales  (in / 32, out, 2): s and z of the weight s(n - 8) + z
    wide    rounded in bfloat16, by at most 1/512
    """

    most_few = 8

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels, scale, zero = round_to_int4(weight)
        packed = self._pack_levels(levels.flatten(1).to(torch.int32))
        wide = levels.sub_(8).mul_(scale[..., None]).add_(zero[..., None]).flatten(1)
        return packed, torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().bfloat16(), wide

    def _pack_levels(self, levels: Tensor) -> Tensor:
        """(out, in) in int32."""
        return cast(Tensor, torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1))

    def _narrow(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, self.levels, GROUP, self.scales))


class CudaInt4Linear(Int4Linear):
    """For tensor cores."""

    def _narrow(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.aten._weight_int4pack_mm(inputs, self.levels, GROUP, self.scales))

    def _pack_levels(self, levels: Tensor) -> Tensor:
        tiles = next(tiles for tiles in TILES if self.in_features % (16 * tiles) == 0)
        pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
        return cast(Tensor, torch.ops.aten._convert_weight_to_int4pack(pairs, tiles))


FP8 = torch.float8_e4m3fn


def round_to_fp8(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, width), scaled by row, and scales (rows, 1) in float32."""
    largest = torch.finfo(FP8).max
    wide = numbers.float()
    scales = (wide.abs().amax(dim=1, keepdim=True) / largest).clamp_(min=torch.finfo(torch.float32).tiny)
    return (wide / scales).clamp_(-largest, largest).to(FP8), scales  # larger ones become NaN


class Fp8Linear(InferenceLinear):
    """e4m3 weights and inputs.

    levels (out, in) scales (out, 1)
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.levels, self.scales = round_to_fp8(linear.weight.detach())
        self.weight_bytes = self.levels.nbytes + self.scales.nbytes

    def _multiply(self, inputs: Tensor) -> Tensor:
        if not len(inputs):  # refuses empty scales
            return inputs.new_empty(0, self.out_features)
        rounded, scales = round_to_fp8(inputs)
        output = torch._scaled_mm(rounded, self.levels.t(), scales, self.scales.t(), out_dtype=torch.bfloat16)
        output = output.to(inputs.dtype)
        return output if self.bias is None else output + self.bias
