"""Proxies on disk: a folder with the encoder as transformers keeps it, the head as safetensors, and a manifest in JSON.

Nothing in it is run when it is read.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from models.errors import CatalogError
from models.proxy.network import Proxy, ProxyNetwork, load_encoder
from models.proxy.task import Scale, Task

FORMAT = 1
"""Raise it when the folder's meaning changes."""

MANIFEST = "proxy.json"
HEAD = "head.safetensors"
ENCODER = "encoder"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The properties of a proxy besides its weights."""

    format: int
    task: Task
    scale: Scale
    max_tokens: int
    """Tokens of a text that it reads."""
    hidden: int
    """Values of the encoder's state of a token."""
    encoder: str
    """Name of the encoder that it was made of."""
    rows: int
    """Rows that it was trained on."""
    torch: str
    transformers: str


def save(folder: Path, proxy: Proxy, *, encoder: str, rows: int) -> None:
    """Write a proxy: what was at `folder` is replaced once the new one is whole. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        new = work / "new"
        network, reader = proxy.network, proxy.reader
        network.encoder.save_pretrained(new / ENCODER)  # type: ignore[operator]
        reader.tokenizer.save_pretrained(new / ENCODER)
        save_file({name: value.contiguous() for name, value in network.head.state_dict().items()}, new / HEAD)
        hidden = int(network.encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        about = Manifest(
            FORMAT,
            proxy.task,
            proxy.scale,
            reader.max_tokens,
            hidden,
            encoder,
            rows,
            str(torch.__version__),
            transformers.__version__,
        )
        (new / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(about)))
        if folder.exists():
            folder.rename(work / "old")
        new.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """Raises CatalogError when there is no proxy that this version can use."""
    try:
        about = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise CatalogError(
            f"there is no proxy at {folder}: make one with `lengthwise train --predictor proxy`"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise CatalogError(f"{folder} is no proxy of `lengthwise train --predictor proxy`: {error}") from error
    if about.format != FORMAT:
        raise CatalogError(
            f"{folder} was made by another version (format {about.format}, here {FORMAT}): "
            "train it again with `lengthwise train --predictor proxy`"
        )
    return about


def load(folder: Path) -> Proxy:
    """Read a proxy; raises CatalogError with the remedy."""
    about = read_manifest(folder)
    encoder, reader = load_encoder(folder / ENCODER, about.max_tokens)
    outputs = about.task.classes if about.task.scores_classes else 1
    network = ProxyNetwork(encoder, about.hidden, outputs)
    try:
        network.head.load_state_dict(load_file(folder / HEAD))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CatalogError(
            f"{folder / HEAD} is damaged: make it anew with `lengthwise train --predictor proxy` ({error})"
        ) from error
    network.eval()
    return Proxy(network, reader, about.task, about.scale)
