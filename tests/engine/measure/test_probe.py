"""Which architectures compute through the arena what they compute by themselves; all others are refused."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.forward.graphs import DecodeGraphs
from engine.measure import probe
from models.errors import LoadError
from models.network.attention import Mask, Runs, gather_attention
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.text import Text
from tests.architectures import GPT2, GROUPED, SERVED, SIZES, Served, build

OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.4}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HEADS = {**GROUPED, "head_dim": 8}
LAYERS = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2}
REFUSED = {
    "Bloom": ("does not run", {"vocab_size": 320, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "DeepseekV3": ("does not run", {**GROUPED, **LATENT, **EXPERTS, "num_key_value_heads": 4}),
    "Falcon": ("cannot be loaded", LAYERS | {"num_attention_heads": 4}),
    "Gemma2": ("soft-capped", HEADS),
    "GPTJ": ("cannot be loaded", {**GPT2, "rotary_dim": 4}),
    "Llama4Text": ("chunked_attention", {**HEADS, "num_local_experts": 2, "intermediate_size_mlp": 64}),
    "Mamba": ("linear_attention", LAYERS | {"state_size": 8}),
    "OPT": ("does not run", {**SIZES, **OPT}),
}


@pytest.mark.parametrize("served", SERVED, ids=str)
def test_an_architecture_computes_through_the_arena_what_it_computes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_text: Text, served: Served
) -> None:
    """In float32 the error is that of rounding, far below what the probe allows for bfloat16."""
    monkeypatch.setattr(probe, "TOLERANCE", 1e-4)
    folder = build(tmp_path, served.kind, served.sizes)
    probe.probe(load(folder, dtype="float32"), tiny_text)


@pytest.mark.parametrize("lacking", [0, 1])
def test_runs_are_probed(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_text: Text, lacking: int) -> None:
    """Gathering attention stands in for that of a GPU; once it forgets each row's first token."""

    def attention(query: Tensor, key: Tensor, value: Tensor, runs: Runs, scale: float | None) -> Tensor:
        short = replace(runs, starts=runs.starts + lacking, lengths=runs.lengths - lacking)
        return gather_attention(query, key, value, short, scale)

    monkeypatch.setattr(probe, "TOLERANCE", 1e-4)
    monkeypatch.setattr("engine.kv.arena.has_flash", lambda *_: True)
    monkeypatch.setattr("engine.forward.graphs.DecodeGraphs", partial(DecodeGraphs, attention=attention))
    model = load(tiny_folder, dtype="float32", kernels=Kernels.TORCH)
    with pytest.raises(LoadError, match="relative error") if lacking else nullcontext():
        probe.probe(model, tiny_text)


@pytest.mark.parametrize(("kind", "reason", "sizes"), [(kind, *rest) for kind, rest in REFUSED.items()])
def test_others_are_refused_at_start(tmp_path: Path, tiny_text: Text, kind: str, reason: str, sizes: Any) -> None:
    folder = build(tmp_path, kind, sizes)
    with pytest.raises(LoadError, match=reason):
        probe.probe(load(folder, dtype="float32"), tiny_text)


def test_rounding_in_bfloat16_is_no_reason_to_refuse(tiny_folder: Path, tiny_text: Text) -> None:
    probe.probe(load(tiny_folder, dtype="bfloat16"), tiny_text)


class Deaf(LoadedModel):
    """A network that does not heed one of the things that the engine passes in."""

    ignores = ""

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: Any = None) -> Tensor:
        if self.ignores == "positions":
            positions = torch.zeros_like(positions)
        if self.ignores == "mask" and isinstance(mask, Tensor):
            mask = torch.ones_like(mask)
        logits = super().forward(tokens, positions, mask, store, select)
        return logits * torch.nan if self.ignores == "numbers" else logits


@pytest.mark.parametrize("ignores", ["positions", "mask", "numbers"])
def test_a_network_that_ignores_what_it_is_given_is_found_out(tiny_folder: Path, tiny_text: Text, ignores: str) -> None:
    """On torch's kernels, which are given a mask where the compiled pass is given each row's first column."""
    tiny_model = load(tiny_folder, dtype="float32", kernels=Kernels.TORCH)
    fields = {name: getattr(tiny_model, name) for name in LoadedModel.__dataclass_fields__}
    deaf = type("Deaf", (Deaf,), {"ignores": ignores})(**fields)
    with pytest.raises(LoadError, match="does not compute the same"):
        probe.probe(deaf, tiny_text)
    probe.probe(replace(tiny_model), tiny_text)
