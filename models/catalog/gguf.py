"""Converts a GGUF file to a folder of safetensors in bfloat16, with transformers."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.catalog.checkpoint import LOCAL
from models.errors import CatalogError
from models.progress import say

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

log = logging.getLogger(__name__)

MAGIC = b"GGUF"

# `tokenizer.ggml.pre` with GPT-2's split
PLAIN = frozenset({"default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"})

# and digits apart, unknown to transformers
DIGIT_BY_DIGIT = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})

# llama.cpp's list; only control tokens of these names end an answer.
END_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|eom_id|>", "<turn|>"),
    *("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
)

CONTROL = 3


def require_gguf(path: Path) -> None:
    """Raises CatalogError."""
    if not path.is_file():
        raise CatalogError(f"there is no file {path}: check the path")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise CatalogError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    if magic != MAGIC:
        raise CatalogError(f"{path} is not a GGUF file: its first bytes are {magic!r}. Download it again")


def count_values(path: Path) -> int:
    """By its header; some seconds. Raises CatalogError."""
    from gguf import GGUFReader

    with _as_catalog_error(path):
        return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)


def convert(source: Path, into: Path) -> None:
    """Some seconds for each 100 MB. Raises CatalogError for damaged or unknown files, and OSError."""
    say(f"converting {source.name} to safetensors: half a minute for 100 MB, only this once")
    # No bars in log files.
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory(dir=into.parent) as alone, quiet, _as_catalog_error(source):
        # transformers would also read tokenizer files beside the source.
        link = Path(alone) / "model.gguf"
        link.symlink_to(source.resolve())
        metadata = _read_metadata(link)
        network = _read_network(link)
        tokenizer = _read_tokenizer(link, metadata, network.config.max_position_embeddings)
        _set_end_tokens(network.generation_config, metadata, tokenizer)
        network.save_pretrained(into)
        tokenizer.save_pretrained(into)


@contextlib.contextmanager
def _as_catalog_error(source: Path) -> Iterator[None]:
    """The libraries raise anything, even bare `Exception`s from Rust."""
    try:
        yield
    except CatalogError:
        raise
    except Exception as error:
        if "os error 28" in str(error) or isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, "No space left on device") from error
        raise CatalogError(
            f"{source.name} cannot be converted ({error}): it is damaged, or of an architecture that transformers "
            "does not read from GGUF. Download it again, or name the model's safetensors instead"
        ) from error


def _read_metadata(path: Path) -> Mapping[str, Any]:
    # Late imports: seconds, unneeded for cached models.
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, tensors = read_gguf_metadata(str(path))
    if metadata.get("split.count", 0) > 1:
        raise CatalogError("this is one part of a split GGUF file: join the parts first (llama-gguf-split --merge)")
    if "rope_freqs.weight" in tensors:
        log.warning("the file's scaled rotary frequencies are not used: long prompts may be understood less well")
    return metadata


def _read_network(path: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    whole = GgufConfig(dequantize=True, gguf_file=path.name)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=whole, **LOCAL
    )


def _read_tokenizer(path: Path, metadata: Mapping[str, Any], context: int) -> PreTrainedTokenizerFast:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import PreTrainedTokenizerFast

    # AutoTokenizer parses the whole file once more.
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        path.parent, gguf_file=path.name, model_max_length=context, clean_up_tokenization_spaces=False, **LOCAL
    )
    backend, pre = tokenizer.backend_tokenizer, metadata.get("tokenizer.ggml.pre", "default")
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return tokenizer
    if pre in DIGIT_BY_DIGIT:
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    elif pre not in PLAIN and isinstance(backend.pre_tokenizer, ByteLevel):
        log.warning("unknown pre-tokenizer '%s': some texts may be cut into other tokens than in training", pre)
    return tokenizer


def _set_end_tokens(
    generation: GenerationConfig | None, metadata: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """End of text, turn and message, and control tokens of END_NAMES; transformers reads the first only."""
    keys = ("eos", "eot", "eom")
    named = {metadata[key] for key in (f"tokenizer.ggml.{end}_token_id" for end in keys) if key in metadata}
    control = {place for place, kind in enumerate(metadata.get("tokenizer.ggml.token_type", ())) if kind == CONTROL}
    places = ((name, tokenizer.backend_tokenizer.token_to_id(name)) for name in END_NAMES)
    known = {name: place for name, place in places if place in control}
    if known.keys() & {"<|return|>", "<|flush|>"}:  # these end the answer, <|end|> a part of it
        known.pop("<|end|>", None)
    ends = sorted(named | set(known.values()))
    if generation is not None and ends:
        generation.eos_token_id = ends if len(ends) > 1 else ends[0]
