"""Checkpoint folders and the memory they need, from headers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from models.errors import CatalogError, translate_failures

INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
LOCAL: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # for transformers


def require_checkpoint(folder: Path) -> None:
    """Raises CatalogError."""
    if not (folder / "config.json").is_file():
        raise CatalogError(f"{folder} has no config.json: {_instead(folder)}")
    if not weight_files(folder):
        raise CatalogError(f"{folder} has no safetensors weights: {_instead(folder)}")
    count_values(folder)  # raises for a truncated file
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise CatalogError(f"{folder} has no tokenizer: copy tokenizer.json of the original model there")


def _instead(folder: Path) -> str:
    found = sorted(folder.glob("*.gguf"))
    if found:
        return f"to serve a GGUF file, name the file itself: {found[0]}"
    unsafe = next((path for pattern in UNSAFE for path in sorted(folder.glob(pattern))), None)
    if unsafe is not None:
        return f"{unsafe.name} may run code when it is opened and is refused; convert it to safetensors first"
    return "name the folder that holds the model's config.json, tokenizer.json and *.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """Empty without any. Raises CatalogError."""
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    with translate_failures(lambda why: CatalogError(f"{folder / INDEX} is damaged ({why}): download it again")):
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return sorted(folder / name for name in names)


def count_values(folder: Path) -> int:
    """By the headers, which show truncation. Raises CatalogError."""
    total = 0
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                total += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise CatalogError(f"{path} is not a whole safetensors file ({error}): download it again") from error
    return total


# called with the parameters beforehand; raises to refuse
Admit = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Need:
    weights: int
    kv: int = 0  # of a token; 0: none
    context: int = 0  # tokens

    def tell(self, width: int, slots: int, context: int | None) -> str:
        """`width` bytes a number, slots of `context` tokens (None: the model's)."""
        weights, tokens = f"weights {self.weights * width / 2**30:.1f} GiB", context or self.context
        kept = slots * tokens * self.kv * width / 2**30
        return f"{weights}, KV cache of {slots} slots with {tokens:,} tokens each {kept:.1f} GiB" if kept else weights


def read_need(folder: Path) -> Need:
    """Raises CatalogError. KV needs usual names."""
    weights = count_values(folder)
    with translate_failures(lambda why: CatalogError(f"{folder}/config.json is damaged ({why}): download it again")):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        try:
            heads = config["num_attention_heads"]
            size = config.get("head_dim") or config["hidden_size"] // heads
            kv_heads = config.get("num_key_value_heads") or heads
            return Need(weights, 2 * config["num_hidden_layers"] * kv_heads * size, config["max_position_embeddings"])
        except (KeyError, ZeroDivisionError):
            return Need(weights)
