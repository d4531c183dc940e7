"""A decoder layer with fused weights.

    qkv      (heads + 2 kv_heads) x head_dim outputs, queries first
    gate_up  2 x intermediate outputs, gate first

Rotary positions (RoFormer, 3.2.2) come from a table by the network's own rotary module.

    line of the table    cos of half a head | sin of half a head
    rotated head         [a b] -> [a b] * [cos cos] + [b a] * [-sin sin]
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.network.attention import Mask, attend
from models.network.decoder.family import DecoderSpec, NotOfFamily
from models.network.kv_store import KvPass
from models.network.linear import InferenceLinear, PackedLinear, pad_tokens


class Rotation(NamedTuple):
    """Each (rows, 1, new, head_dim)."""

    cos: Tensor
    sin: Tensor


def turn(heads: Tensor, rotation: Rotation) -> Tensor:
    """`heads` (rows, heads, new, head_dim)."""
    return torch.addcmul(heads * rotation.cos, heads.roll(heads.shape[-1] // 2, dims=-1), rotation.sin)


def multiply_gate(gate_up: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
    """(tokens, 2 x intermediate), gate first -> (tokens, intermediate)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate).mul_(up)


class Rotary(nn.Module):
    table: Tensor

    def __init__(self, rotary: nn.Module, embeddings: Tensor, positions: int, head_dim: int) -> None:
        """rotary      (embeddings, positions) -> cos and sin, each (1, positions, turned)
        embeddings  of the network's dtype and device
        positions   how many there may be

        Raises NotOfFamily where pairs are not half a head apart.
        """
        super().__init__()
        cos, sin = rotary(embeddings, torch.arange(positions, device=embeddings.device)[None])
        turned = cos.shape[-1]
        half = turned // 2
        apart = cos.shape == (1, positions, turned) and bool((cos[..., :half] == cos[..., half:]).all())
        if not apart or turned % 2 or turned > head_dim:
            raise NotOfFamily("it turns pairs of another kind")
        still = (head_dim - turned) // 2
        parts = (cos[0, :, :half], cos.new_ones(positions, still), sin[0, :, :half], sin.new_zeros(positions, still))
        self.register_buffer("table", torch.cat(parts, dim=-1))
        self._turned, self.positions = turned, positions

    def pair_order(self, head_dim: int) -> list[int] | None:
        """With pairs half a head apart; None if so already. Partial rotation turns the first `turned` numbers."""
        half, end = self._turned // 2, (head_dim + self._turned) // 2
        order = [*range(half), *range(self._turned, end), *range(half, self._turned), *range(end, head_dim)]
        return None if self._turned == head_dim else order

    def gather(self, positions: Tensor) -> Rotation:
        cos, sin = self.table[positions].unsqueeze(1).chunk(2, dim=-1)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((sin.neg(), sin), dim=-1))


class DecoderLayer(nn.Module):
    qkv: nn.Linear | InferenceLinear
    out: nn.Linear | InferenceLinear
    gate_up: nn.Linear | InferenceLinear
    down: nn.Linear | InferenceLinear
    before: Tensor
    between: Tensor
    head_weight: Tensor | None

    def __init__(self, layer: nn.Module, spec: DecoderSpec, rotary: Rotary) -> None:
        """Takes weights over."""
        super().__init__()
        self._spec = spec
        attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
        self.turns = bool(getattr(attention, "use_rope", True))  # SmolLM3
        order = rotary.pair_order(spec.head_dim) if self.turns else None
        self.register_buffer("before", norm_weight(layer.get_submodule("input_layernorm")))
        self.register_buffer("between", norm_weight(layer.get_submodule("post_attention_layernorm")))
        self.qkv = _fuse(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        turning = (spec.heads + spec.kv_heads) * spec.head_dim
        for tensor in (self.qkv.weight, self.qkv.bias) if order is not None else ():
            if tensor is not None:
                part = tensor[:turning].view(-1, spec.head_dim, *tensor.shape[1:])
                part.copy_(part[:, order])
        self.gate_up = _fuse(mlp, ("gate_proj", "up_proj"), "gate_up_proj")
        scale = float(getattr(layer, "residual_multiplier", 1.0))
        self.out, self.down = _scale(attention, "o_proj", scale), _scale(mlp, "down_proj", scale)
        self.activate = next(child for name, child in mlp.named_children() if name in ("act_fn", "activation_fn"))
        self.turn, self.multiply_gate = turn, multiply_gate  # compiled on CUDA
        self.register_buffer("head_weight", None)
        if hasattr(attention, "q_norm"):  # Qwen3's, of query and key heads, (heads + kv_heads, 1, head_dim)
            counts = {"q_norm": spec.heads, "k_norm": spec.kv_heads}
            weights = [norm_weight(attention.get_submodule(name)).expand(count, -1) for name, count in counts.items()]
            weight = torch.cat(weights)
            self.head_weight = (weight if order is None else weight[:, order])[:, None]

    def forward(
        self, hidden: Tensor, shape: tuple[int, int], rotation: Rotation, mask: Mask, kv: KvPass, layer: int
    ) -> Tensor:
        """(tokens, width), those of `shape` (rows, new) first; `mask` as in `attend`."""
        rows, new = shape
        spec = self._spec
        products = self.qkv.forward(F.rms_norm(hidden, self.before.shape, self.before, spec.eps))
        heads = products[: rows * new].view(rows, new, -1, spec.head_dim).transpose(1, 2)
        turning, values = torch.split(heads, [spec.heads + spec.kv_heads, spec.kv_heads], dim=1)
        if self.head_weight is not None:
            turning = F.rms_norm(turning, (spec.head_dim,), eps=spec.eps) * self.head_weight
        if self.turns:
            turning = self.turn(turning, rotation)
        queries, keys = torch.split(turning, [spec.heads, spec.kv_heads], dim=1)
        keys, values = kv.write(layer, keys, values)
        read = attend(queries, keys, values, mask, spec.attention_scale).transpose(1, 2)
        hidden = add_product(self.out, pad_tokens(read.reshape(rows * new, -1), len(hidden)), hidden)
        gate_up = self.gate_up.forward(F.rms_norm(hidden, self.between.shape, self.between, spec.eps))
        return add_product(self.down, self.multiply_gate(gate_up, self.activate), hidden)


def add_product(linear: nn.Linear | InferenceLinear, inputs: Tensor, residual: Tensor) -> Tensor:
    """Fused if possible."""
    if isinstance(linear, PackedLinear):
        return linear.add_to(residual, inputs)
    return residual + linear.forward(inputs)


def norm_weight(norm: nn.Module) -> Tensor:
    """(width,)."""
    weight = norm.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _fuse(parent: nn.Module, names: Sequence[str], fused: str) -> nn.Linear:
    parts = [_take(parent, name) for name in ((fused,) if hasattr(parent, fused) else names)]
    whole = torch.cat([part.weight.detach() for part in parts])
    biases: list[Tensor | None] = [part.bias for part in parts]
    if not any(bias is not None for bias in biases):
        return _linear_of(whole, None)
    zeros = [part.weight.new_zeros(part.out_features) for part in parts]
    whole_bias = torch.cat([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])
    return _linear_of(whole, whole_bias)


def _scale(parent: nn.Module, name: str, factor: float) -> nn.Linear:
    linear = _take(parent, name)
    if factor != 1.0:
        for tensor in linear.parameters():
            tensor.mul_(factor)
    return linear


def _take(parent: nn.Module, name: str) -> nn.Linear:
    linear = parent.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    delattr(parent, name)
    return linear


def _linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
