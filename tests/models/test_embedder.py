"""The sentence embedder: its rules on a tiny random one, and the real one where it is cached."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from models import embedder as module
from models.catalog.catalog import CatalogError
from models.embedder import Embedder
from models.network import packing
from server.embeddings import EmbeddingRefused, EmbeddingWorker
from tests.calls import note_calls
from tests.models import tiny_embedder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder.build(tmp_path_factory.mktemp("embedder"))


def test_each_text_becomes_a_row_whatever_stands_beside_it(folder: Path) -> None:
    embedder = Embedder.load(folder)
    texts = ["a b c", "d", "", "a b c", "e f g h i j k l m n"]
    together = embedder.encode(texts)
    assert together.shape == (5, 16)
    assert together.dtype == np.float32
    assert np.array_equal(together[0], together[3])
    for text, row in zip(texts, together, strict=True):
        assert Embedder.load(folder).encode([text])[0] == pytest.approx(row, abs=1e-5)


@pytest.mark.parametrize(("wide", "tolerance"), [(True, 1e-5), (False, 1e-3)])
def test_packing_its_layers_changes_no_more_than_their_weights_are_rounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wide: bool, tolerance: float
) -> None:
    monkeypatch.setattr(packing, "computes_bfloat16", lambda: wide)
    expected = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(["a b c"])
    assert Embedder.load(folder).encode(["a b c"])[0] == pytest.approx(expected[0], abs=tolerance)


def test_what_is_longer_than_it_reads_is_cut(folder: Path) -> None:
    embedder = Embedder.load(folder, max_tokens=5)  # its two marks included
    assert embedder.max_tokens == 5
    first, longer, other = embedder.encode(["a b c", "a b c d e f", "a b d"])
    assert np.array_equal(first, longer)
    assert not np.allclose(first, other)


def test_it_reads_no_more_than_its_network_can(folder: Path) -> None:
    assert Embedder.load(folder, max_tokens=1000).max_tokens == 32


def test_it_knows_no_token_that_its_network_lacks(tmp_path: Path) -> None:
    """A text with such a token ended in an error of torch."""
    folder = tiny_embedder.build(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    network = Embedder.load(folder)
    assert network.vocab_size == len(tiny_embedder.WORDS)
    with pytest.raises(EmbeddingRefused, match="has the token 30, but token ids of tiny go from 0 to 29"):
        EmbeddingWorker(network, "tiny").read(["a b", "a <new> b"])


def test_texts_that_come_again_are_not_embedded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    embedder = Embedder.load(folder)
    asked = note_calls(monkeypatch, embedder._network, "encode", lambda texts, **options: texts)
    first = embedder.encode(["a", "b", "a"])
    again = embedder.encode(["a", "c"])
    assert asked == [["a", "b"], ["c"]]
    assert np.array_equal(first[0], again[0])
    embedder.encode(["a", "c"])
    embedder.encode(["b"])  # forgotten, as the one longest unheard of
    assert asked == [["a", "b"], ["c"], ["b"]]


def test_another_networks_folder_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(CatalogError, match=r"is no sentence embedder, it has no modules.json: name one"):
        Embedder.load(tiny_folder)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(CatalogError, match="cannot be loaded"):
        Embedder.load(tmp_path)
