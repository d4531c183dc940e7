"""Hub ids: their form, what is asked of the hub, and how its refusals read. No network."""

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import DryRunFileInfo, errors

from models.catalog.catalog import Catalog
from models.catalog.hub import HUB_ID, WANTED
from models.errors import CatalogError
from tests.models.fake_package import TooLarge, checkpoint, refuse


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return checkpoint(tmp_path)


@pytest.fixture
def coming() -> list[DryRunFileInfo]:
    """Files that a download would bring, or that are here; of no more than their names and sizes."""
    return []


@pytest.fixture
def asked(snapshot: Path, coming: list[DryRunFileInfo], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the download; records what it was asked for."""
    calls: list[dict[str, Any]] = []

    def download(repo: str, *, dry_run: bool = False, **options: Any) -> str | list[DryRunFileInfo]:
        if dry_run:
            return coming
        calls.append({"repo": repo, **options})
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def resolve(tmp_path: Path, name: str) -> Path:
    return Catalog(tmp_path / "cache", packaged=()).resolve(name)


IDS = ["a/b", "Org-1/name_2.x", "org/name@main", "org/name@refs/pr/1"]
NO_IDS = ["name", "a/b/c", "/a/b", "a/", "a/b@", "a b/c", "a/b\n", "https://a/b"]


@pytest.mark.parametrize("name", [*IDS, *NO_IDS])
def test_an_organisation_and_a_name_make_an_id(name: str) -> None:
    assert bool(HUB_ID.fullmatch(name)) is (name in IDS)


def test_a_revision_is_passed_on_and_data_asked(tmp_path: Path, snapshot: Path, asked: list[dict[str, Any]]) -> None:
    assert resolve(tmp_path, "org/name@v1.0") == snapshot
    assert asked == [{"repo": "org/name", "revision": "v1.0", "allow_patterns": list(WANTED)}]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling_own.py", "model.pt", "weights.pkl", "model.gguf"])
def test_files_that_can_run_code_are_not_wanted(name: str) -> None:
    assert not any(fnmatch(name, pattern) for pattern in WANTED)


def test_a_model_without_safetensors_is_refused(tmp_path: Path, snapshot: Path, asked: list[dict[str, Any]]) -> None:
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(CatalogError, match="no safetensors weights"):
        resolve(tmp_path, "org/name")


def weights(size: int, *, here: bool = False) -> DryRunFileInfo:
    return DryRunFileInfo("c0ffee", size, "model.safetensors", "", is_cached=here, will_download=not here)


def test_weights_that_do_not_fit_are_refused_before_they_are_downloaded(
    tmp_path: Path, coming: list[DryRunFileInfo], asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path / "cache", packaged=())
    found = SimpleNamespace(parameter_count={"BF16": 7, "F32": 2})
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda repo, revision: found)
    coming.append(weights(18))
    with pytest.raises(TooLarge, match="9"):
        catalog.resolve("org/name", refuse)
    coming[:] = [weights(2**60)]
    with pytest.raises(CatalogError, match="org/name needs .* set HF_HOME to a folder on another disk"):
        catalog.resolve("org/name", refuse)
    assert asked == []
    coming[:] = [weights(2**60, here=True)]
    catalog.resolve("org/name", refuse)
    assert len(asked) == 1


def test_weights_of_which_the_hub_tells_nothing_are_downloaded(
    tmp_path: Path, coming: list[DryRunFileInfo], asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lack = Mock(side_effect=errors.NotASafetensorsRepoError("org/name"))
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lack)
    coming.append(weights(18))
    Catalog(tmp_path / "cache", packaged=()).resolve("org/name", refuse)
    assert len(asked) == 1


def test_what_is_here_is_used_without_the_hub(tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, *, dry_run: bool = False, **options: Any) -> str:
        if dry_run:
            raise errors.DryRunError("offline")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve(tmp_path, "org/name") == snapshot


def http_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    return kind("refused", response=httpx2.Response(404, request=httpx2.Request("GET", "http://localhost")))


REFUSALS = [
    (http_error(errors.GatedRepoError), "accept its terms .* HF_TOKEN"),
    (http_error(errors.RepositoryNotFoundError), "check the spelling"),
    (http_error(errors.RevisionNotFoundError), "no such revision"),
    (errors.LocalEntryNotFoundError("offline"), "out of reach: go online"),
    (errors.OfflineModeIsEnabled("offline"), "unset HF_HUB_OFFLINE"),
    (errors.HFValidationError("a--b"), "could not be downloaded"),
    (ConnectionError("reset"), r"\(reset\): check the network"),
]


@pytest.mark.parametrize(("error", "remedy"), REFUSALS)
def test_refusals_name_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(CatalogError, match=remedy):
        resolve(tmp_path, "org/name")
