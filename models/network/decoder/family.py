"""Networks of Llama's family, by modules and config: RMSNorm, gated MLP, rotary positions, grouped queries, optional
biases, head norms, multipliers, and layers without rotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTIONS = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"})
MLPS = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})
HEAD_NORMS = {"q_norm", "k_norm"}
SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")


class NotOfFamily(ValueError):
    """The message says how."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Besides its weights."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float  # of RMSNorm
    attention_scale: float
    embedding_scale: float  # Granite's
    logits_divisor: float  # Granite's


def read_spec(network: PreTrainedModel) -> DecoderSpec:
    """Raises NotOfFamily."""
    if any(getattr(network.config, name, None) for name in SOFT_CAPS):
        raise NotOfFamily("it caps logits softly")
    _require(_children(network) == {"model", "lm_head"}, "it is more than a body and a head")
    body = network.get_submodule("model")
    _require(_children(body) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "its body has parts of other kinds")
    ends = type(body.get_submodule("embed_tokens")), type(network.get_submodule("lm_head"))
    _require(ends == (nn.Embedding, nn.Linear), "its embeddings or its head are of another kind")
    specs = {_read_layer(layer, body, network) for layer in body.get_submodule("layers").children()}
    _require(len(specs) == 1, "its layers differ in size")
    return specs.pop()


def _read_layer(layer: nn.Module, body: nn.Module, network: PreTrainedModel) -> DecoderSpec:
    _require(_children(layer) == LAYER, "its layers have parts of other kinds")
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    _require(_children(attention) - HEAD_NORMS in ATTENTIONS, "its attention has parts of other kinds")
    _require(_children(mlp) in MLPS, "its MLP is not a gated one")
    own = (layer, attention, mlp)
    _require(not any(part._parameters or part._buffers for part in own), "its layers have weights of other kinds")
    products = [child for part in own for name, child in part.named_children() if name.endswith("_proj")]
    _require(all(type(product) is nn.Linear for product in products), "its products are of another kind")
    told = all(hasattr(attention, name) for name in ("head_dim", "num_key_value_groups", "scaling"))
    _require(told, "its attention does not tell its sizes")
    head_dim = int(attention.head_dim)  # type: ignore[arg-type]
    head_norms = [child for name, child in attention.named_children() if name in HEAD_NORMS]
    sized = [norm.weight.numel() for norm in head_norms] in ([], [head_dim] * 2)  # type: ignore[operator]
    _require(sized, "its queries and keys are normed otherwise than by heads")
    norms = [layer.get_submodule(name) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [*head_norms, body.get_submodule("norm")]
    told = all(hasattr(norm, "variance_epsilon") and set(norm._parameters) == {"weight"} for norm in norms)
    _require(told, "its norms are of another kind")
    epsilons = {float(norm.variance_epsilon) for norm in norms}  # type: ignore[arg-type]
    _require(len(epsilons) == 1, "its norms differ")
    heads = attention.get_submodule("o_proj").in_features // head_dim  # type: ignore[operator]
    groups = int(attention.num_key_value_groups)  # type: ignore[arg-type]
    return DecoderSpec(
        heads=int(heads),
        kv_heads=int(heads) // groups,
        head_dim=head_dim,
        eps=epsilons.pop(),
        attention_scale=float(attention.scaling),  # type: ignore[arg-type]
        embedding_scale=float(getattr(body, "embedding_multiplier", 1.0)),
        logits_divisor=float(getattr(network.config, "logits_scaling", 1.0)),
    )


def _children(module: nn.Module) -> set[str]:
    return {name for name, child in module.named_children() if child.state_dict() or name == "rotary_emb"}


def _require(like: bool, departure: str) -> None:
    if not like:
        raise NotOfFamily(departure)
