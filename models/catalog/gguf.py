"""A GGUF file -> a folder of safetensors in bfloat16, with config and tokenizer.

It owns the conversion, which transformers does, and what transformers leaves open about tokenizers. It knows
nothing of the cache or of where the file comes from.
"""

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

from models.errors import CatalogError
from models.progress import say

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

log = logging.getLogger(__name__)

MAGIC = b"GGUF"

PLAIN = frozenset({"default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"})
"""Values of `tokenizer.ggml.pre` whose vocabularies were learned on GPT-2's split of the text."""

DIGIT_BY_DIGIT = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
"""Values that mean: GPT-2's split, with each digit on its own. transformers does not know them."""

# llama.cpp's list; only control tokens of these names end an answer.
END_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|eom_id|>", "<turn|>"),
    *("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
)

CONTROL = 3  # a value of tokenizer.ggml.token_type


def require_gguf(path: Path) -> None:
    """Raise CatalogError unless there is a GGUF file at `path`."""
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
    """Numbers in the weights of a GGUF file, by its header; some seconds. Raises CatalogError."""
    from gguf import GGUFReader

    with _as_catalog_error(path):
        return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)


def convert(source: Path, into: Path) -> None:
    """Write the model of a GGUF file as a checkpoint folder; some seconds for each 100 MB.

    Raises CatalogError when the file is damaged or of an unknown architecture, OSError when the disk is full.
    """
    say(f"converting {source.name} to safetensors: half a minute for 100 MB, only this once")
    # Bars that libraries draw of their own are noise in a log file.
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory(dir=into.parent) as alone, quiet, _as_catalog_error(source):
        # transformers would also read the tokenizer files that may lie beside the source.
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
    """The libraries below raise every kind of exception, down to bare `Exception`s from Rust."""
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
    # Late imports here and below: they take seconds, and a model in the cache needs none of them.
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

    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True, gguf_file=path.name),
        trust_remote_code=False,
        local_files_only=True,
    )


def _read_tokenizer(path: Path, metadata: Mapping[str, Any], context: int) -> PreTrainedTokenizerFast:
    """The tokenizer that the file describes, which splits text as its vocabulary expects."""
    from transformers import PreTrainedTokenizerFast

    # Not AutoTokenizer: it parses the whole file once more, only to choose a class that GGUF tokenizers do not need.
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        path.parent,
        gguf_file=path.name,
        local_files_only=True,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    if metadata.get("tokenizer.ggml.model") == "gpt2":
        _mend_split(tokenizer, metadata.get("tokenizer.ggml.pre", "default"))
    return tokenizer


def _mend_split(tokenizer: PreTrainedTokenizerFast, pre: str) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    backend = tokenizer.backend_tokenizer
    if pre in DIGIT_BY_DIGIT:
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    elif pre not in PLAIN and isinstance(backend.pre_tokenizer, ByteLevel):
        # transformers has put a finer split in place for the values that it knows.
        log.warning("unknown pre-tokenizer '%s': some texts may be cut into other tokens than in training", pre)


def _set_end_tokens(
    generation: GenerationConfig | None, metadata: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    """End of text, of turn and of message all end an answer, as do control tokens of END_NAMES; transformers reads only
    the first."""
    keys = ("eos", "eot", "eom")
    named = {metadata[key] for key in (f"tokenizer.ggml.{end}_token_id" for end in keys) if key in metadata}
    control = {place for place, kind in enumerate(metadata.get("tokenizer.ggml.token_type", ())) if kind == CONTROL}
    places = ((name, tokenizer.backend_tokenizer.token_to_id(name)) for name in END_NAMES)
    known = {name: place for name, place in places if place in control}
    if known.keys() & {"<|return|>", "<|flush|>"}:  # these end the answer, and <|end|> a part of it
        known.pop("<|end|>", None)
    ends = sorted(named | set(known.values()))
    if generation is not None and ends:
        generation.eos_token_id = ends if len(ends) > 1 else ends[0]
