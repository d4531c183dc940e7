"""The cache folder: whole or absent, whatever happens while an entry is built."""

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models.catalog.disk_cache import MANIFEST, Origin, obtain as obtain_folder, read_manifest
from models.errors import CatalogError

ORIGIN = Origin("tiny-model==1.0", "0" * 64)
ENTRY = "packaged/tiny"


def build(scratch: Path, out: Path) -> None:
    (scratch / "download").write_bytes(b"thrown away")
    for name in ("a", "b", "deep/c"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(name.encode())


def failing(error: BaseException) -> Callable[[Path, Path], None]:
    def build_and_fail(scratch: Path, out: Path) -> None:
        build(scratch, out)
        raise error

    return build_and_fail


def obtain(root: Path, origin: Origin = ORIGIN) -> Path:
    return obtain_folder(root / ENTRY, origin, 0, build)


def left_over(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_built_folder_has_a_manifest_of_its_files_and_nothing_of_the_scratch_folder(tmp_path: Path) -> None:
    folder = obtain(tmp_path)
    manifest = read_manifest(tmp_path / ENTRY)
    assert manifest is not None
    assert manifest.files == {"a": 1, "b": 1, "deep/c": 6}
    assert (manifest.origin, manifest.size) == (ORIGIN, 8)
    assert sorted(p.name for p in left_over(tmp_path)) == ["a", "b", "c", MANIFEST]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.rglob("?"))


@pytest.mark.parametrize("damage", ["a", "deep/c", MANIFEST])
@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(b"other length")])
def test_a_damaged_folder_is_reported_and_made_anew(
    tmp_path: Path, damage: str, how: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = obtain(tmp_path)
    how(folder / damage)
    obtain_folder(tmp_path / ENTRY, ORIGIN, 0, build)
    assert read_manifest(tmp_path / ENTRY) is not None
    assert capsys.readouterr().err == f"{folder} is damaged or out of date: it is made anew\n"


def test_a_folder_of_another_origin_is_made_anew(tmp_path: Path) -> None:
    obtain(tmp_path)
    newer = Origin("tiny-model==2.0", "1" * 64)
    obtain(tmp_path, newer)
    manifest = read_manifest(tmp_path / ENTRY)
    assert manifest is not None and manifest.origin == newer


@pytest.mark.parametrize("error", [CatalogError("no"), KeyboardInterrupt(), RuntimeError("bug"), SystemExit(1)])
def test_a_build_that_fails_leaves_nothing_and_keeps_its_error(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        obtain_folder(tmp_path / ENTRY, ORIGIN, 0, failing(error))
    assert caught.value is error
    assert left_over(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / "packaged" / ".tiny.partial" / "out" / "half"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half a file")
    folder = obtain(tmp_path)
    assert not stale.parent.parent.exists()
    assert not (folder / "half").exists()


class LastFile(io.FileIO):
    """Lets a number of writes through, of all files that Python code writes, then the disk is full."""

    room: Iterator[int]

    def write(self, data: Any) -> int:
        if next(self.room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("room", range(6))
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Five writes are all there are, and each may be the last."""
    plain = Path.open

    def open_last(path: Path, mode: str = "r", *how: Any, **more: Any) -> Any:
        return LastFile(path, "w") if mode == "wb" else plain(path, mode, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LastFile, "room", iter(range(room)), raising=False)
        patch.setattr(Path, "open", open_last)
        if room == 5:
            obtain(tmp_path)
        else:
            with pytest.raises(CatalogError, match=r"No space left on device; free some space .* LENGTHWISE_CACHE"):
                obtain(tmp_path)
            assert left_over(tmp_path) == []
        assert next(LastFile.room, None) is None
    assert (obtain(tmp_path) / "a").exists()


def test_too_little_space_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"not enough disk space: tiny needs 1000000000 MB"):
        obtain_folder(tmp_path / ENTRY, ORIGIN, 10**15, failing(AssertionError()))
    assert left_over(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CatalogError, match=r"cannot write to .*file/packaged: .*LENGTHWISE_CACHE"):
        obtain(tmp_path / "file")


def test_of_two_at_once_one_builds_and_the_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    building, waiting = threading.Event(), threading.Event()
    builds: list[Path] = []
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        waiting.set()

    monkeypatch.setattr("models.catalog.disk_cache.say", say)

    def slow(scratch: Path, out: Path) -> None:
        builds.append(out)
        building.set()
        assert waiting.wait(30)
        build(scratch, out)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(obtain_folder, tmp_path / ENTRY, ORIGIN, 0, slow)
        assert building.wait(30)
        other = threads.submit(obtain_folder, tmp_path / ENTRY, ORIGIN, 0, slow)
        assert first.result() == other.result()
    assert len(builds) == 1
    assert told == ["waiting for another process that prepares tiny"]
