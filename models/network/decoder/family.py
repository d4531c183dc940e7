"""Which networks the decoder can run, and what it must know of them: told by their modules and config, never by name.

The family is Llama's: RMSNorm before attention and before a gated MLP, rotary positions, grouped queries; biases, norms
of the queries' and keys' heads, multipliers and layers without rotation where there are some. Whether a network that
looks like one of the family also computes like one is for `agrees` in models.network.loader to find out.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTIONS = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"})
MLPS = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})
HEAD_NORMS = {"q_norm", "k_norm"}
SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")


class NotOfFamily(ValueError):
    """A network departs from the family; the message says where."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """What a decoder must know of its network besides the weights."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    """Added to the mean square in every RMSNorm."""
    attention_scale: float
    embedding_scale: float
    """What embeddings are multiplied by (Granite), 1 elsewhere."""
    logits_divisor: float
    """What logits are divided by (Granite), 1 elsewhere."""


def read_spec(network: PreTrainedModel) -> DecoderSpec:
    """Read what the decoder must know of a network; raises NotOfFamily unless it can run it."""
    if any(getattr(network.config, name, None) for name in SOFT_CAPS):
        raise NotOfFamily("it caps logits softly")
    _require(_children(network) == {"model", "lm_head"}, "it is more than a body and a head")
    body = network.get_submodule("model")
    _require(_children(body) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "its body has parts of other kinds")
    layers = list(body.get_submodule("layers").children())
    specs = {_read_layer(layer, body, network) for layer in layers}
    _require(len(specs) == 1, "its layers differ in size")
    return specs.pop()


def _read_layer(layer: nn.Module, body: nn.Module, network: PreTrainedModel) -> DecoderSpec:
    _require(_children(layer) == LAYER, "its layers have parts of other kinds")
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    _require(_children(attention) - HEAD_NORMS in ATTENTIONS, "its attention has parts of other kinds")
    _require(_children(mlp) in MLPS, "its MLP is not a gated one")
    own = (layer, attention, mlp)
    _require(not any(module._parameters or module._buffers for module in own), "its layers have weights of other kinds")
    norms = [child for part in own for name, child in part.named_children() if name.endswith("norm")]
    epsilons = {_epsilon(norm) for norm in (*norms, body.get_submodule("norm"))}
    _require(len(epsilons) == 1, "its norms differ")
    head_dim = int(attention.head_dim)  # type: ignore[arg-type]
    groups = int(attention.num_key_value_groups)  # type: ignore[arg-type]
    out = attention.get_submodule("o_proj")
    assert isinstance(out, nn.Linear)
    heads = out.in_features // head_dim
    return DecoderSpec(
        heads=heads,
        kv_heads=heads // groups,
        head_dim=head_dim,
        eps=epsilons.pop(),
        attention_scale=float(attention.scaling),  # type: ignore[arg-type]
        embedding_scale=float(getattr(body, "embedding_multiplier", 1.0)),
        logits_divisor=float(getattr(network.config, "logits_scaling", 1.0)),
    )


def _children(module: nn.Module) -> set[str]:
    """The names of a module's children that compute something in inference and have weights, or children, for it."""
    return {
        name for name, child in module.named_children() if any(True for _ in child.state_dict()) or name == "rotary_emb"
    }


def _epsilon(norm: nn.Module) -> float:
    """The epsilon of an RMSNorm. Raises NotOfFamily for a norm of another kind."""
    epsilon = getattr(norm, "variance_epsilon", None)
    _require(epsilon is not None and set(norm._parameters) == {"weight"}, "its norms are of another kind")
    return float(epsilon)  # type: ignore[arg-type]


def _require(like: bool, departure: str) -> None:
    if not like:
        raise NotOfFamily(departure)
