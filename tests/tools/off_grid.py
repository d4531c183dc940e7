"""A llama checkpoint with the same function on no grid: `python -m tests.tools.off_grid MODEL FOLDER`.

Norms' gains go into the layers behind them; a random rotation R of the residual stream then cancels, since
rms_norm(x R) = rms_norm(x) R without gains: what reads the stream becomes W R, what writes it R^T W.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from models.catalog.catalog import Catalog

READERS = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
)
WRITERS = ("self_attn.o_proj", "mlp.down_proj")


@torch.no_grad()
def rotate(network: LlamaForCausalLM) -> None:
    width, model = network.config.hidden_size, network.model
    turn = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.double() * model.norm.weight @ turn)
    network.config.tie_word_embeddings = False
    for layer in model.layers:
        for norm, names in READERS:
            for name in names:
                weight = layer.get_submodule(name).weight
                weight.copy_(weight * layer.get_submodule(norm).weight @ turn)
            layer.get_submodule(norm).weight.fill_(1.0)
        for name in WRITERS:
            weight = layer.get_submodule(name).weight
            weight.copy_(turn.T @ weight)
    model.embed_tokens.weight.copy_(model.embed_tokens.weight.double() @ turn)
    model.norm.weight.fill_(1.0)


def main() -> None:
    source, target = Catalog().resolve(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(0)
    network = LlamaForCausalLM.from_pretrained(source, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokens = tokenizer("The same function, on other weights.", return_tensors="pt")
    before = network(**tokens).logits
    rotate(network)
    print(f"largest change of a logit: {(network(**tokens).logits - before).abs().max():.1e}")
    for each in network.parameters():
        each.data = each.data.to(torch.float32)
    network.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
