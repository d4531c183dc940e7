"""SSJF's proxy, an encoder with a two-layer head on the first token; its folder is data only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as library_logging

from models.catalog.checkpoint import LOCAL, require_checkpoint
from models.errors import CatalogError, translate_failures
from models.network.packing import pack_encoder
from models.proxy.task import ProxyTask, Scale, lengths_of

MAX_TOKENS = 512  # last ones (SSJF, 3.1)

HEAD_WIDTH = 128  # authors' code

CELLS = 2048  # tokens of a pass; more are no faster on a CPU

# characters read for each token
TEXT_PER_TOKEN = 32


class ProxyNetwork(nn.Module):
    def __init__(self, encoder: nn.Module, hidden: int, task: ProxyTask) -> None:
        super().__init__()
        self.encoder = encoder
        outputs = task.classes if task.scores_classes else 1
        self.head = nn.Sequential(nn.Linear(hidden, HEAD_WIDTH), nn.ReLU(), nn.Linear(HEAD_WIDTH, outputs))

    def first_token(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Ids and mask (n, tokens) -> hidden state (n, hidden)."""
        return cast(Tensor, self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0].float())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Ids and mask (n, tokens) -> (n, outputs)."""
        return cast(Tensor, self.head(self.first_token(ids, mask)))


class Reader:
    """The last `max_tokens`, with marks."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        tokenizer.truncation_side = "left"
        tokenizer.padding_side = "right"

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        ends = [text[-self.max_tokens * TEXT_PER_TOKEN :] for text in texts]
        encoded = self.tokenizer(ends, truncation=True, max_length=self.max_tokens, padding=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def pad(self, rows: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        padded = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(device)
        return padded["input_ids"], padded["attention_mask"]


class Proxy:
    """One thread at a time."""

    def __init__(self, network: ProxyNetwork, reader: Reader, task: ProxyTask, scale: Scale) -> None:
        self.network = network
        self.reader = reader
        self.task = task
        self.scale = scale

    @classmethod
    def fresh(cls, folder: Path, task: ProxyTask, scale: Scale, *, max_tokens: int = MAX_TOKENS, seed: int = 0) -> Self:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder, reader = load_encoder(folder, max_tokens)
            network = ProxyNetwork(encoder, int(encoder.config.hidden_size), task)
        return cls(network, reader, task, scale)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def pack(self) -> Self:
        if self.device.type == "cpu":
            pack_encoder(self.network)
        return self

    def predict(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return lengths_of(self.task, self.scale, self.compute(self.reader.read(texts), self.network).cpu())

    def compute(self, rows: Sequence[list[int]], part: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """In order, without gradients."""
        self.network.eval()
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for places in groups(rows, CELLS):
                inputs = self.reader.pad([rows[place] for place in places], self.device)
                found |= dict(zip(places, part(*inputs), strict=True))
        return torch.stack([found[place] for place in range(len(rows))])


def groups(rows: Sequence[list[int]], cells: int) -> Iterator[list[int]]:
    """Similar lengths, at most `cells`."""
    group: list[int] = []
    for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
        if group and (len(group) + 1) * len(rows[place]) > cells:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def load_encoder(folder: Path, max_tokens: int) -> tuple[Any, Reader]:
    """Raises CatalogError."""
    require_checkpoint(folder)
    library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = library_logging.get_verbosity()
    library_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with translate_failures(lambda why: CatalogError(f"the encoder in {folder} cannot be loaded: {why}")):
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **LOCAL)
            encoder = AutoModel.from_pretrained(str(folder), use_safetensors=True, dtype=torch.float32, **LOCAL)
    finally:
        library_logging.set_verbosity(before)
    most = getattr(encoder.config, "max_position_embeddings", None) or max_tokens
    reader = Reader(tokenizer, min(max_tokens, most, tokenizer.model_max_length))
    ids, mask = reader.pad(reader.read(["first", "first second third"]), torch.device("cpu"))
    encoder.eval()
    with torch.inference_mode():
        states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    if torch.allclose(states[0], states[1], atol=1e-5):
        raise CatalogError(
            f"the network in {folder} is no encoder, its first token sees nothing of what comes after it: "
            "name one such as all-minilm-l6-v2"
        )
    return encoder, reader


FORMAT = 1  # of the folder

REMEDY = "`lengthwise train --predictor proxy`"

MANIFEST = "proxy.json"
HEAD = "head.safetensors"
ENCODER = "encoder"


@dataclass(frozen=True, slots=True)
class ProxyManifest:
    format: int
    task: ProxyTask
    scale: Scale
    max_tokens: int
    hidden: int
    encoder: str
    rows: int


def save(folder: Path, proxy: Proxy, *, encoder: str, rows: int) -> None:
    """Atomic. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", ignore_cleanup_errors=True) as work:
        new = Path(work) / "new"
        network, reader = proxy.network, proxy.reader
        network.encoder.save_pretrained(new / ENCODER)  # type: ignore[operator]
        reader.tokenizer.save_pretrained(new / ENCODER)
        save_file({name: value.contiguous() for name, value in network.head.state_dict().items()}, new / HEAD)
        hidden = int(network.encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        about = ProxyManifest(FORMAT, proxy.task, proxy.scale, reader.max_tokens, hidden, encoder, rows)
        (new / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(about)))
        if folder.exists():
            folder.rename(Path(work) / "old")
        new.rename(folder)


def read_manifest(folder: Path) -> ProxyManifest:
    """Raises CatalogError."""
    if not (folder / MANIFEST).exists():
        raise CatalogError(f"there is no proxy at {folder}: make one with {REMEDY}")
    with translate_failures(lambda why: CatalogError(f"{folder} is no proxy of {REMEDY}: {why}")):
        about = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ProxyManifest)
    if about.format != FORMAT:
        made = f"{folder} was made by another version (format {about.format}, here {FORMAT})"
        raise CatalogError(f"{made}: train it again with {REMEDY}")
    return about


def load(folder: Path) -> Proxy:
    """Raises CatalogError."""
    about = read_manifest(folder)
    encoder, reader = load_encoder(folder / ENCODER, about.max_tokens)
    network = ProxyNetwork(encoder, about.hidden, about.task)
    head = folder / HEAD
    with translate_failures(lambda why: CatalogError(f"{head} is damaged: make it anew with {REMEDY} ({why})")):
        network.head.load_state_dict(load_file(head))
    network.eval()
    return Proxy(network, reader, about.task, about.scale)
