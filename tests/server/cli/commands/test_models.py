"""`lengthwise models`: what it prints where, what it deletes, and its exit codes."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL, Catalog
from server.cli.commands import models as models_command
from tests import tiny
from tests.models import tiny_gguf
from tests.server.cli.commands.runner import Told, run_command

pytestmark = pytest.mark.usefixtures("cache")

run = partial(run_command, models_command.add_parser, "models")


def test_the_list_names_packaged_models_and_touches_no_disk(cache: Path, told: Told) -> None:
    head, *rows = told().splitlines()
    assert head.split() == ["NAME", "CACHED", "SIZE", "WEIGHTS", "32", "SLOTS", "LICENCE", "FOLDER", "ABOUT"]
    assert [row.split()[:9] for row in rows] == [
        [DEFAULT_MODEL, "no", "93", "MB", "0.3", "GiB", "5.6", "GiB", "Apache-2.0"],
        [DEFAULT_EMBEDDER, "no", "84", "MB", "0.0", "GiB", "-", "Apache-2.0", "-"],
    ]
    assert not cache.exists()
    head, row, _ = told("list", "--max-num-seqs", 8, "--max-model-len", 1024, "--dtype", "float32").splitlines()
    assert "8 SLOTS" in head and row.split()[4:8] == ["0.5", "GiB", "0.4", "GiB"]


def test_the_list_as_json_has_sizes_needs_and_folders(cache: Path, told: Told) -> None:
    first, *_ = json.loads(told("list", "--json"))
    assert (first["name"], first["cached"], first["license"]) == (DEFAULT_MODEL, False, "Apache-2.0")
    assert first["size"] > 0
    assert first["need"] == {"weights": 134_515_008, "kv": 11_520, "context": 8192}
    assert first["folder"].startswith(str(cache))


def test_pull_prints_the_folder_and_apart_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny.build(tmp_path / "mine")
    capsys.readouterr()
    assert run("pull", folder, "--max-num-seqs", 3) == 0
    output = capsys.readouterr()
    assert output.out == f"{folder}\n"
    assert output.err.startswith(f"{folder}: weights 0.0 GiB, KV cache of 3 slots with ")


def test_a_model_that_does_not_fit_is_refused_unfetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**28))
    monkeypatch.setattr("models.catalog.packaged.PackagedModel.build", None)
    error = told("pull", DEFAULT_MODEL, "--device", "cpu", "--dtype", "bfloat16", code=1)
    assert "its weights take 0.3 GiB in bfloat16, and 0.2 GiB of cpu memory are free: free some" in error
    assert Catalog().find(DEFAULT_MODEL) is None


def test_a_converted_file_is_known_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_gguf.write(tmp_path / "own.gguf")
    folder = Path(told("pull", "own.gguf").strip())
    (status,) = (one for one in Catalog().known() if one.name == str(tmp_path / "own.gguf"))
    kv = 2 * tiny_gguf.LAYERS * tiny_gguf.KV_HEADS * tiny_gguf.HIDDEN // tiny_gguf.HEADS
    assert status.folder == folder and (status.need.kv, status.need.context) == (kv, tiny_gguf.CONTEXT)
    assert "free again" in told("rm", "own.gguf") and not folder.exists()
