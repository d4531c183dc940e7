"""A llama of two layers in a GGUF file, written with llama.cpp's own writer, and the weights that it must become."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Weights = Mapping[str, npt.NDArray[np.float32]]

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, LAYERS, CONTEXT = 32, 4, 2, 64, 2, 128
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGED = ("12", "ĠĠ")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def write(
    path: Path, *, pre: str = "smollm", architecture: str = "llama", special: Sequence[str] = SPECIAL, **metadata: int
) -> Weights:
    """Write the file, with other names of the control tokens if need be; returns its weights under the names that
    transformers gives them."""
    writer = gguf.GGUFWriter(path, architecture)
    _add_shape(writer)
    _add_tokenizer(writer, pre, special)
    for key, value in metadata.items():
        writer.add_uint32(key.replace("__", "."), value)
    weights = _weights()
    for name, values in weights.items():
        _add_tensor(writer, name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _add_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens()))


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str, special: Sequence[str]) -> None:
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*special, *tokens()[len(special) :]])
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens()])
    writer.add_token_merges([" ".join(token) for token in MERGED])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def tokens() -> list[str]:
    """Control tokens, one token a byte in GPT-2's spelling, and what the merges make."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + place) for place in range(256 - len(printable))]
    return [*SPECIAL, *alphabet, *MERGED]


def _weights() -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(0)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens": (len(tokens()), HIDDEN), "model.norm": (HIDDEN,)}
    for layer in (f"model.layers.{place}" for place in range(LAYERS)):
        shapes |= {f"{layer}.{norm}": (HIDDEN,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}.self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qo"}
        shapes |= {f"{layer}.self_attn.{part}_proj": (kv, HIDDEN) for part in "kv"}
        shapes |= {f"{layer}.mlp.{part}_proj": (FEED_FORWARD, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (HIDDEN, FEED_FORWARD)}
    return {f"{name}.weight": random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32]) -> None:
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    stored = values if heads is None else _interleaved(values, heads)
    stem = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS).get_name(name, try_suffixes=(".weight",))
    assert stem is not None, name
    if values.ndim == 1:
        writer.add_tensor(stem, stored)
    else:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(stem, gguf.quantize(np.ascontiguousarray(stored), kind), raw_dtype=kind)


def _interleaved(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """The order of rows in which llama.cpp keeps Q and K: the halves that RoPE pairs lie side by side."""
    halves = values.reshape(heads, 2, -1, values.shape[1])  # (heads, half, pair, hidden)
    return halves.swapaxes(1, 2).reshape(values.shape)
