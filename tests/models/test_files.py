"""A file is replaced whole or not at all, and a place that cannot be written is refused before anything is done."""

from pathlib import Path

import pytest

from models.files import replace_file, require_writable_file, require_writable_folder


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    for content in (b"old", b"new"):
        with replace_file(path) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"old"
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_what_breaks_off_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replace_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_asking_makes_folders_and_leaves_no_file(tmp_path: Path) -> None:
    require_writable_folder(tmp_path / "a" / "b")
    require_writable_file(tmp_path / "c" / "file")
    assert list((tmp_path / "a" / "b").iterdir()) == [] == list((tmp_path / "c").iterdir())


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError):
        require_writable_file(tmp_path)
    with pytest.raises(OSError):
        require_writable_file(tmp_path / "file" / "below")
    require_writable_file(tmp_path / "file")
