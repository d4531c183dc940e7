"""What torch raises for lack of memory, as the torch-free error that the rules of a row's life know."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.device import OutOfMemoryError

_SHORTAGE = (
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory",
    "out of memory",
    "_ALLOC_FAILED",
)
"""Parts of messages by which torch's CPU allocator, oneDNN and CUDA's libraries tell that there is no memory: they
raise RuntimeError for that as for all else."""


@contextmanager
def refusing() -> Iterator[None]:
    """Raise a torch-free OutOfMemoryError for any lack of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not _is_shortage(error):
            raise
        # What failed holds tensors in its frames, views of K and V among them: memory that is to be given back.
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemoryError(str(error)) from error


def _is_shortage(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in _SHORTAGE)
