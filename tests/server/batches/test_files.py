"""The folder of a server's files."""

from __future__ import annotations

from pathlib import Path

from server.batches.files import hold_folder


def test_a_folder_is_held_by_one_server_at_a_time(tmp_path: Path) -> None:
    with hold_folder(tmp_path / "batches" / "tiny") as first, hold_folder(tmp_path / "batches" / "tiny") as second:
        assert first is None
        assert second == "is held by another server"
    with hold_folder(tmp_path / "batches" / "tiny") as again:
        assert again is None


def test_a_folder_that_cannot_be_made_is_told_and_is_no_error(tmp_path: Path) -> None:
    """Below a cache folder that is read-only the server ended with a traceback."""
    (tmp_path / "batches").write_text("a file where the folder should be")
    with hold_folder(tmp_path / "batches" / "tiny") as obstacle:
        assert obstacle == "cannot be written: Not a directory"
