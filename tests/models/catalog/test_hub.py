"""Hub ids: their form, what is asked of the hub, and how its refusals read. No network."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

from models.catalog.catalog import Catalog
from models.catalog.errors import CatalogError
from models.catalog.hub import WANTED, is_id
from tests.models.fake_package import FILES, RecordedProgress

Hub = Callable[..., None]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes(FILES[name])
    return tmp_path


@pytest.fixture
def asked(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the download; records what it was asked for."""
    calls: list[dict[str, Any]] = []

    def download(repo: str, **options: Any) -> str:
        calls.append({"repo": repo, **options})
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def resolve(tmp_path: Path, name: str) -> Path:
    return Catalog(tmp_path / "cache", progress=RecordedProgress(), packaged=()).resolve(name)


@pytest.mark.parametrize("name", ["a/b", "Org-1/name_2.x", "org/name@main", "org/name@refs/pr/1"])
def test_an_organisation_and_a_name_make_an_id(name: str) -> None:
    assert is_id(name)


@pytest.mark.parametrize("name", ["name", "a/b/c", "/a/b", "a/", "a/b@", "a b/c", "a/b\n", "https://a/b"])
def test_nothing_else_is_an_id(name: str) -> None:
    assert not is_id(name)


def test_the_revision_is_passed_on_and_only_data_is_asked_for(
    tmp_path: Path, snapshot: Path, asked: list[dict[str, Any]]
) -> None:
    assert resolve(tmp_path, "org/name@v1.0") == snapshot
    assert asked == [{"repo": "org/name", "revision": "v1.0", "allow_patterns": list(WANTED)}]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling_own.py", "model.pt", "weights.pkl", "model.gguf"])
def test_files_that_can_run_code_are_not_wanted(name: str) -> None:
    assert not any(fnmatch(name, pattern) for pattern in WANTED)


def test_a_model_without_safetensors_is_refused(tmp_path: Path, snapshot: Path, asked: list[dict[str, Any]]) -> None:
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(CatalogError, match="no safetensors weights"):
        resolve(tmp_path, "org/name")


def http_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    return kind("refused", response=httpx2.Response(404, request=httpx2.Request("GET", "http://localhost")))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (http_error(errors.GatedRepoError), "accept its terms .* HF_TOKEN"),
        (http_error(errors.RepositoryNotFoundError), "check the spelling"),
        (http_error(errors.RevisionNotFoundError), "no such revision"),
        (errors.LocalEntryNotFoundError("offline"), "out of reach: go online"),
        (errors.OfflineModeIsEnabled("offline"), "unset HF_HUB_OFFLINE"),
        (errors.HFValidationError("a--b"), "could not be downloaded"),
        (ConnectionError("reset"), r"\(reset\): check the network"),
    ],
)
def test_each_refusal_of_the_hub_names_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CatalogError, match=remedy):
        resolve(tmp_path, "org/name")
