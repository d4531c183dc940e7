"""Sentence embeddings, without network access or foreign code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from models.catalog.catalog import EMBEDDER_MAX_TOKENS
from models.errors import CatalogError, translate_failures
from models.network.packing import pack_encoder
from models.recent import Recent

BATCH = 8  # texts in a pass; more are no faster on a CPU

REMEMBERED = 1024  # texts: instructions repeat

MODULES = "modules.json"  # marks an embedder's folder


class Embedder:
    """One thread at a time."""

    def __init__(self, network: SentenceTransformer) -> None:
        self._network = network
        self._known = Recent[str, NDArray[np.float32]](REMEMBERED)

    @classmethod
    def load(cls, folder: Path, *, max_tokens: int = EMBEDDER_MAX_TOKENS) -> Embedder:
        """Raises CatalogError."""
        if not (folder / MODULES).is_file():
            message = f"{folder} is no sentence embedder, it has no {MODULES}"
            raise CatalogError(f"{message}: name one, such as all-minilm-l6-v2")
        with translate_failures(lambda why: CatalogError(f"the sentence embedder in {folder} cannot be loaded: {why}")):
            network = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
        network.max_seq_length = min(max_tokens, network.max_seq_length or max_tokens)
        pack_encoder(network.float())
        return cls(network)

    @property
    def max_tokens(self) -> int:
        return int(self._network.max_seq_length or EMBEDDER_MAX_TOKENS)

    @property
    def vocab_size(self) -> int:
        network = getattr(self._network[0], "auto_model", None)  # a table of embeddings has none
        known = len(self._network.tokenizer)
        return known if network is None else min(known, int(network.get_input_embeddings().num_embeddings))

    @property
    def dimensions(self) -> int:
        return int(self._network.get_embedding_dimension() or 0)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        prompt = self._network.prompts.get(self._network.default_prompt_name or "") or ""
        return list(self._network.tokenizer([prompt + text for text in texts])["input_ids"])

    def encode_ids(self, ids: Sequence[Sequence[int]], dimensions: int | None = None) -> NDArray[np.float32]:
        """(n, dim) in one pass, with sentence-transformers' `truncate_dim` and `normalize_embeddings`."""
        features = self._network.tokenizer.pad({"input_ids": [list(one) for one in ids]}, return_tensors="pt")
        with torch.inference_mode():
            embeddings = self._network(dict(features))["sentence_embedding"]
            if dimensions is not None:
                embeddings = torch.nn.functional.normalize(embeddings[:, :dimensions], dim=1)
        return np.asarray(embeddings.numpy(), dtype=np.float32)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found = {text: self._known[text] for text in texts if text in self._known}
        if fresh := [text for text in dict.fromkeys(texts) if text not in found]:
            with torch.inference_mode():
                new = self._network.encode(fresh, batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True)
            found |= zip(fresh, np.asarray(new, dtype=np.float32), strict=True)
        self._known.update(found)
        return np.stack([found[text] for text in texts])
