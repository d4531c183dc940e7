"""Token embeddings: those of a folder are those of the network that is loaded from it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.errors import LoadError
from models.network import embeddings
from models.network.embeddings import read_token_embeddings, token_embeddings
from models.network.loader import LoadedModel


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_folder_has_the_embeddings_of_its_network(
    tiny_folder: Path, tiny_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """In parts, and also where they were saved without what the network calls the part below its head."""
    monkeypatch.setattr(embeddings, "ROWS", 7)
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    weights = load_file(next(tiny_folder.glob("*.safetensors")))
    save_file({prefix + name.removeprefix("model."): one for name, one in weights.items()}, tmp_path / "a.safetensors")
    parts = list(read_token_embeddings(tmp_path))
    assert max(map(len, parts)) == 7
    assert np.array_equal(np.concatenate(parts), np.concatenate(list(token_embeddings(tiny_model))))


def test_weights_without_embeddings_are_told(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tiny_folder / "config.json").read_text())))
    save_file({"other": np.zeros(2, dtype=np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(LoadError, match="has no token embeddings"):
        list(read_token_embeddings(tmp_path))
