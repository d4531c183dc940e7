"""A network of transformers becomes a decoder, unless it is another kind of network or computes something else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.network.decoder.decoder import Decoder
from models.network.decoder.family import read_spec

TOKENS = 32
"""Length of the text that both read."""

EXACT = 1e-3
ROUNDING = 8
"""A logit vector may differ by EXACT of its length, or by so many times what the dtype rounds a number by."""


class OtherLogits(ValueError):
    """A decoder computes something else than its network did, whose weights it has taken."""


@torch.no_grad()
def take_over(
    network: PreTrainedModel, context_length: int, *, fold_norms: bool = True, fuse_norms: bool | None = None
) -> Decoder:
    """A decoder with a network's weights, which keeps none that were fused; `fold_norms` and `fuse_norms` as
    DecoderSpec has them, None meaning on CUDA.

    Raises NotOfFamily, the network being as it was, and OtherLogits, the network being of no more use.
    """
    fuses = network.device.type == "cuda" if fuse_norms is None else fuse_norms
    spec = replace(read_spec(network), folds_norms=fold_norms, fuses_norms=fuses)
    tokens = sample_text(context_length, network.config.vocab_size).to(network.device)
    expected: Tensor = network(input_ids=tokens, use_cache=False).logits.float()
    decoder = Decoder(network, spec, context_length)
    require_alike(decoder.read(tokens), expected, network.dtype)
    return decoder


def sample_text(context_length: int, vocabulary: int) -> Tensor:
    """A text (1, tokens) that two passes read, to compare what they compute."""
    return torch.arange(10, 10 + min(TOKENS, context_length))[None] % vocabulary


def require_alike(found: Tensor, expected: Tensor, dtype: torch.dtype, rounded: float = 0.0) -> None:
    """Raises OtherLogits unless logits (1, tokens, vocab) are those expected, but for rounding in `dtype` and a
    relative error of `rounded`, that of weights in fewer bits.

    In 16 bits a text's first places are off by a tenth in any pass, the reference's own included: no context yet.
    """
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    error = float(errors[:, found.shape[1] // 2 :].median())
    if not error <= max(EXACT, ROUNDING * torch.finfo(dtype).eps, rounded):
        raise OtherLogits(f"relative error {error:.2g}")
