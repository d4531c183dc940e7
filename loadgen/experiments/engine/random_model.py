"""Llama networks of random weights, made on the device, for a machine that nothing shall be downloaded to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from loadgen.experiments.engine.setup import Subject
from models.network.decoder.decoder import Decoder
from models.network.decoder.family import read_spec
from models.network.generation_config import SamplingDefaults
from models.network.loader import LoadedModel, read_kv_shape
from models.text import Text


def eight_billion(layers: int) -> LlamaConfig:
    """The sizes of Llama 3.1 8B, which has 32 layers, but for its context."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=32768,
    )


def tiny(layers: int) -> LlamaConfig:
    """A network that a CPU computes at once; wide weights make the likeliest token likelier by more than rounding."""
    return LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )


def make_network(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """A network of these sizes, with the same numbers each time."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            network = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    torch.nn.Module.to(network, device)  # what ignored the default device
    torch.nn.Module.eval(network).requires_grad_(False)
    return network


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A token for each byte, and words for all other numbers."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"<{number}>" for number in range(256, vocabulary))]
    backend = Tokenizer(BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]


def random_subject(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> Subject:
    """A network of these sizes on this project's own pass."""
    network, context = make_network(config, dtype, device), config.max_position_embeddings
    spec = replace(read_spec(network), fuses_norms=device.type == "cuda")
    model = LoadedModel(
        folder=Path("random"),
        network=Decoder(network, spec, context),
        kv=read_kv_shape(config, dtype, device),
        vocab_size=config.vocab_size,
        context_length=context,
        end_token_ids=frozenset(),
        sampling_defaults=SamplingDefaults(),
    )
    return Subject("random weights", model, Text(make_tokenizer(config.vocab_size)))
