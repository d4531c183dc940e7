"""A tiny random model with a byte-level tokenizer, written to a folder: a real checkpoint that takes milliseconds."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.network.loader import LoadedModel
from models.text import Text

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAD_ID, START_ID, END_ID = range(3)
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "the quick brown fox jumps over the lazy dog, and the other animals watch what it does.\n"
    "def add(left, right):\n    return left + right\n"
    "你好，世界。今天天气很好。 😀 👩‍👩‍👧‍👦 مرحبا\n"
)


class Net(NamedTuple):
    model: LoadedModel
    text: Text


def build(folder: Path, *, context: int = 512, seed: int = 0, intermediate: int = 64) -> Path:
    """Write config, safetensors and tokenizer of a two-layer llama with grouped queries; returns the folder."""
    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    marks: dict[str, Any] = {"bos_token_id": START_ID, "eos_token_id": END_ID, "pad_token_id": PAD_ID}
    # Wide weights, so that the likeliest token is likelier than the next by more than rounding.
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": intermediate, "initializer_range": 0.4}
    config = LlamaConfig(**LAYERS, **sizes, **marks, vocab_size=len(tokenizer), max_position_embeddings=context)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_parrot(folder: Path, text: str) -> Path:
    """A checkpoint that says `text` over and over whatever it is asked; no token may occur in it twice.

    Embeddings are one-hot and the layers add nothing, so the head sees which token was last and names its successor.
    """
    tokenizer = _tokenizer()
    size = len(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert len(set(tokens)) == len(tokens)
    successor = torch.full((size,), tokens[0])
    successor[tokens] = torch.tensor([*tokens[1:], tokens[0]])
    one: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = LlamaConfig(**one, vocab_size=size, hidden_size=size, max_position_embeddings=512, eos_token_id=END_ID)
    network = LlamaForCausalLM(config)
    layer = network.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        network.model.embed_tokens.weight.copy_(torch.eye(size))
        network.lm_head.weight.copy_(torch.nn.functional.one_hot(successor, size).T)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters: dict[str, Any] = {"vocab_size": 320, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(**letters, special_tokens=[PAD, START, END], show_progress=False)
    backend.train_from_iterator([CORPUS], trainer)
    given: dict[str, Any] = {"tokenizer_object": backend, "eos_token": END, "pad_token": PAD}
    return PreTrainedTokenizerFast(**given, chat_template=CHAT_TEMPLATE)  # type: ignore[no-untyped-call]
