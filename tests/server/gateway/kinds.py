"""A model whose answers are as long as their prompts say in a token without a word, and prompts of eight kinds.

    python -m tests.server.gateway.kinds FOLDER

FOLDER/model says one length token after another, each the successor of the one before it, down to the end: a llama
of any speed whose layers add nothing; FOLDER/model.gguf is the same for llama.cpp. FOLDER/prompts.jsonl, and 300
others in FOLDER/before.jsonl for a predictor to learn from, each have words of one kind, and last the token of the
answer's length, which is lognormal by kind. So who reads words can predict lengths, up to the spread within a kind,
and nobody can know them.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KINDS, WORDS = 8, 16
SHORTEST_MEDIAN, LONGEST_MEDIAN, SIGMA = 6.0, 380.0, 0.45
RARER = 0.77
"""How often a kind comes beside the next shorter one."""
LONGEST = 700
SPACE = "▁"
"""What llama.cpp makes of a space between words."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def length_token(length: int) -> str:
    """Two braille signs, which no pattern of words finds."""
    return chr(0x2801 + length // 64) + chr(0x2801 + length % 64)


def build(folder: Path, *, hidden: int, layers: int) -> None:
    """Write the model, with a tokenizer which knows whole words only, in both formats."""
    names = ["[UNK]", "[END]", SPACE, *(word(kind, number) for kind in range(KINDS + 1) for number in range(WORDS))]
    chain = ["[END]", *(length_token(length) for length in range(1, LONGEST + 1))]
    vocabulary = {name: index for index, name in enumerate([*names, *chain[1:]])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, unk_token="[UNK]", eos_token="[END]", pad_token="[END]"
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
    }
    sizes |= {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "num_hidden_layers": layers}
    sizes |= {"max_position_embeddings": 2048, "tie_word_embeddings": False, "dtype": "bfloat16"}
    config = LlamaConfig(**sizes, eos_token_id=1, pad_token_id=1)
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        network.lm_head.weight.zero_()
        for shorter, longer in zip(chain, chain[1:], strict=False):
            network.lm_head.weight[vocabulary[shorter]] = network.model.embed_tokens.weight[vocabulary[longer]]
    network.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_gguf(folder.with_suffix(".gguf"), network, [*vocabulary])


def _write_gguf(path: Path, network: LlamaForCausalLM, tokens: Sequence[str]) -> None:
    """Write the model for llama.cpp. Queries and keys keep their order, since what attention finds is not used."""
    writer, config, types = gguf.GGUFWriter(path, "llama"), network.config, gguf.TokenType
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    kinds = {"[UNK]": types.UNKNOWN, "[END]": types.CONTROL, SPACE: types.NORMAL}
    writer.add_token_types([kinds.get(token, types.USER_DEFINED) for token in tokens])
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    stored = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in network.state_dict().items():
        found = stored.get_name(name, try_suffixes=(".weight",))
        assert found is not None, name
        writer.add_tensor(found, (weight.float() if weight.dim() == 1 else weight.half()).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def word(kind: int, number: int) -> str:
    """A word of a kind; of all kinds, behind the last."""
    return f"{'abcdefghi'[kind]}{'klmnopqrstuvwxyz'[number]}"


def prompts(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Prompts, and the tokens of their answers."""
    chance = random.Random(seed)
    ratio = (LONGEST_MEDIAN / SHORTEST_MEDIAN) ** (1 / (KINDS - 1))
    for _ in range(count):
        (kind,) = chance.choices(range(KINDS), [RARER**kind for kind in range(KINDS)])
        length = chance.lognormvariate(0, SIGMA) * SHORTEST_MEDIAN * ratio**kind
        answer = min(LONGEST, max(2, round(length)))
        own = [word(chance.choice((kind, KINDS)), chance.randrange(WORDS)) for _ in range(chance.randint(8, 24))]
        yield " ".join([*own, length_token(answer)]), answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=2000)
    args = parser.parse_args()
    build(args.folder / "model", hidden=args.hidden, layers=args.layers)
    for name, count, seed in (("prompts", args.prompts, 1), ("before", 300, 2)):
        lines = [json.dumps({"input": prompt}, ensure_ascii=False) for prompt, _ in prompts(count, seed)]
        (args.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    lengths = [length for _, length in prompts(args.prompts, 1)]
    mean = sum(lengths) / len(lengths)
    print(f"{args.folder}: answers of {min(lengths)} to {max(lengths)} tokens, {mean:.0f} in the mean")


if __name__ == "__main__":
    main()
