"""The fused forward pass of Llama-shaped networks, taken over from transformers'. It never reads from the device, has
no data-dependent shapes, and no state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.network.attention import Mask, Select, prepare_mask
from models.network.decoder.family import DecoderSpec, read_spec
from models.network.decoder.layer import DecoderLayer, Rotary, Rotation, multiply_gate, norm_weight, turn
from models.network.kv_store import KvStore, PassingStore
from models.network.likeliest import sharpen
from models.network.linear import InferenceLinear, PackedLinear, pad_tokens, round_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

WARM_UP = 10**11  # products compiled at most: a second or two


class Decoder(nn.Module):
    head: nn.Linear
    norm_weight: Tensor

    def __init__(self, network: PreTrainedModel, spec: DecoderSpec, context_length: int) -> None:
        """Makes the network unusable, or raises NotOfFamily."""
        super().__init__()
        self.spec = spec
        body = network.get_submodule("model")
        embed, layers = map(body.get_submodule, ("embed_tokens", "layers"))
        head = network.get_submodule("lm_head")
        assert isinstance(embed, nn.Embedding) and isinstance(head, nn.Linear) and isinstance(layers, nn.ModuleList)
        self.embed, self.head = embed, head
        self._tied = head.weight is embed.weight
        self.rotary = Rotary(body.get_submodule("rotary_emb"), embed.weight, context_length, spec.head_dim)
        taken = (layers.pop(0) for _ in range(len(layers)))
        self.layers = nn.ModuleList(DecoderLayer(layer, spec, self.rotary) for layer in taken)
        self.register_buffer("norm_weight", norm_weight(body.get_submodule("norm")))

    @property
    def embeddings(self) -> Tensor:
        return self.embed.weight

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: Select = None) -> Tensor:
        hidden = self.embed.forward(tokens)
        if self.spec.embedding_scale != 1:
            hidden = hidden * self.spec.embedding_scale
        rotation = self.rotary.gather(positions)
        prepared = prepare_mask(mask, tokens.shape[1], hidden.dtype, self.spec.kv_heads)
        kv = store.begin_pass(*tokens.shape)
        rows, new = tokens.shape
        count = rows * new
        padded = round_up(count) if new > 1 and hidden.device.type == "cpu" else count
        flat = pad_tokens(hidden.flatten(0, 1), padded)
        for index, layer in enumerate(self.layers):
            flat = layer.forward(flat, (rows, new), rotation, prepared, kv, index)
        hidden = flat[:count].view(rows, new, -1)
        chosen = hidden if select is None else hidden[select]
        logits = self._read_out(F.rms_norm(chosen, self.norm_weight.shape, self.norm_weight, self.spec.eps))
        return logits if self.spec.logits_divisor == 1 else logits / self.spec.logits_divisor

    def _read_out(self, hidden: Tensor) -> Tensor:
        """(..., width) -> float32 (..., vocab)."""
        head: nn.Module = self.head
        rounded: Tensor = head.forward(hidden)
        logits = rounded.float()
        whole = self._tied and isinstance(head, nn.Linear | PackedLinear) and not hidden.is_cuda
        if rounded.dtype is torch.float32 or not whole:  # the embeddings' weight is the head's
            return logits
        return sharpen(logits.flatten(0, -2), hidden.flatten(0, -2), self.embed.weight).view(logits.shape)

    def read(self, tokens: Tensor) -> Tensor:
        """(rows, new, vocab), without a cache."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.forward(tokens, positions, None, PassingStore())

    @torch.inference_mode()
    def warm_up(self, tokens: int, rows: int) -> None:
        """Compile a CPU's products for passes of up to `tokens`, and the head's up to `rows`, so that requests need not
        wait; of large networks less.
        """
        weight, layer = self.embeddings, self.layers[0]
        if weight.device.type != "cpu":
            return
        linears = (one for one in layer.modules() if isinstance(one, nn.Linear | InferenceLinear))
        left = WARM_UP // sum(one.in_features * one.out_features for one in linears)
        counts = sorted({round_up(number) for number in range(1, tokens + 1)})
        affordable = [count for count, spent in zip(counts, accumulate(counts), strict=True) if spent <= left]
        for count in reversed(affordable):  # the shortest last: oneDNN forgets the oldest
            rotation = self.rotary.gather(torch.zeros((1, count), dtype=torch.long))
            mask = prepare_mask(None, count, weight.dtype, self.spec.kv_heads)
            layer.forward(weight.new_zeros(count, weight.shape[1]), (1, count), rotation, mask, PassingStore(), 0)
        for count in range(1, rows + 1):
            self.head.forward(weight.new_zeros(count, weight.shape[1]))

    @torch.inference_mode()
    def compile_parts(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Rotation and gated product, each if torch compiles it correctly; on CUDA."""
        torch.compiler.reset()  # it keeps eight variants, of all networks
        layers = [one for one in self.layers if isinstance(one, DecoderLayer)]
        activate = {type(layer.activate): layer.activate for layer in layers}
        for layer in layers:
            layer.activate = activate[type(layer.activate)]
        for name, plain in PARTS.items():
            seen = list[tuple[Any, ...]]()
            self._set_part(name, _noting(plain, seen))
            self.read(sample_text(self.rotary.positions, len(self.embeddings)).to(self.embeddings.device))
            compiled = torch.compile(plain, backend=backend, dynamic=True)
            try:
                if seen:
                    found, exact = compiled(*seen[0]), plain(*map(_widen, seen[0]))
                    error = float((found.double() - exact).norm() / exact.norm())
                    if not error <= PRECISE * torch.finfo(found.dtype).eps:
                        raise ValueError(f"relative error {error:.2g}")
                self._set_part(name, compiled)
            except Exception as error:
                log.warning("each %s is several kernels, which costs speed: %s", name.replace("_", " "), error)
                self._set_part(name, plain)

    def _set_part(self, name: str, part: Callable[..., Tensor]) -> None:
        for layer in self.layers:
            setattr(layer, name, part)

    def twin(self) -> Self:
        """Shares weights."""
        return self


PARTS: Mapping[str, Callable[..., Tensor]] = {"turn": turn, "multiply_gate": multiply_gate}  # of a layer, to compile

TOKENS = 32  # of the text

EXACT = 1e-3
ROUNDING = 8  # or logits differ by EXACT of their length, or this many roundings


PRECISE = 2  # roundings by which a part alone may differ


def _noting(part: Callable[..., Tensor], seen: list[tuple[Any, ...]]) -> Callable[..., Tensor]:
    def noted(*inputs: Any) -> Tensor:
        seen.append(inputs)
        return part(*inputs)

    return noted


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double()
    return Rotation(*map(_widen, value)) if isinstance(value, Rotation) else value


class OtherLogits(ValueError):
    """The network's weights were taken."""


@torch.no_grad()
def take_over(network: PreTrainedModel, context_length: int) -> Decoder:
    """Raises NotOfFamily (network intact) and OtherLogits (not)."""
    spec = read_spec(network)
    tokens = sample_text(context_length, network.config.vocab_size).to(network.device)
    expected: Tensor = network(input_ids=tokens, use_cache=False).logits.float()
    decoder = Decoder(network, spec, context_length)
    require_alike(decoder.read(tokens), expected, network.dtype)
    return decoder


def sample_text(context_length: int, vocabulary: int) -> Tensor:
    return torch.arange(10, 10 + min(TOKENS, context_length))[None] % vocabulary


def require_alike(found: Tensor, expected: Tensor, dtype: torch.dtype, rounded: float = 0.0) -> None:
    """Raises OtherLogits unless logits (1, tokens, vocab) are equal up to `dtype`'s rounding and a relative `rounded`;
    in 16 bits first places are off by a tenth.
    """
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    error = float(errors[:, found.shape[1] // 2 :].median())
    if not error <= max(EXACT, ROUNDING * torch.finfo(dtype).eps, rounded):
        raise OtherLogits(f"relative error {error:.2g}")
