"""Folders that can be served, and why others are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from models.catalog.checkpoint import read_need, require_checkpoint
from models.errors import CatalogError
from tests.models.fake_package import FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes(FILES[name])
    return tmp_path


def refused(folder: Path, reason: str) -> None:
    with pytest.raises(CatalogError, match=reason):
        require_checkpoint(folder)


def shards(folder: Path, *names: str) -> None:
    index = {"weight_map": dict(zip("abc", names, strict=False))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


UNFIT: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        r"no safetensors weights: pytorch_model\.bin may run code .* convert it to safetensors",
    ),
    (lambda folder: (folder / "config.json").unlink(), r"has no config\.json: name the folder that holds"),
    (lambda folder: (folder / "config.json").rename(folder / "a.gguf"), r"name the file itself: .*a\.gguf"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
]


@pytest.mark.parametrize(("change", "reason"), UNFIT)
def test_what_cannot_be_served_is_refused(folder: Path, change: Callable[[Path], object], reason: str) -> None:
    change(folder)
    refused(folder, reason)


@pytest.mark.parametrize("content", [FILES["model.safetensors"][:-1], b"version https://git-lfs", b""])
def test_weights_that_are_cut_short_or_a_placeholder_are_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "not a whole safetensors file")


@pytest.mark.parametrize("second", [[0, 8], [4, 12], [12, 20]])
def test_tensors_that_overlap_or_leave_a_gap_are_refused(folder: Path, second: list[int]) -> None:
    tensors = {name: {"dtype": "F32", "shape": [2], "data_offsets": at} for name, at in (("a", [0, 8]), ("b", second))}
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(second[1]))
    refused(folder, "not a whole safetensors file")


@pytest.mark.parametrize("config", ["{", "[]", '{"num_attention_heads": "x", "hidden_size": 4}', '{"a": ' * 100_000])
def test_a_config_that_tells_no_sizes_is_no_need_but_an_error(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises(CatalogError, match=r"config\.json is damaged .*: download it again"):
        read_need(folder)


def test_every_shard_of_the_index_must_be_there(folder: Path) -> None:
    require_checkpoint(folder)
    shards(folder, "model.safetensors", "model-2.safetensors")
    refused(folder, r"model-2\.safetensors is not a whole")
    (folder / "model-2.safetensors").write_bytes(FILES["model.safetensors"])
    require_checkpoint(folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}', '{"a": ' * 100_000])
def test_a_broken_index_is_refused(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    refused(folder, "is damaged")
