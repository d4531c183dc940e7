"""torch's out-of-memory errors as the torch-free one of the lifecycle."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.device import OutOfMemoryError

# parts of such messages of oneDNN, torch's CPU allocator and CUDA
_ONEDNN = ("could not create a primitive", "could not create a memory")
_SHORTAGE = (*_ONEDNN, "can't allocate memory", "out of memory", "_ALLOC_FAILED")


@contextmanager
def refusing() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in str(error) for part in _SHORTAGE)
        if not known:
            raise
        # its frames hold tensors
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemoryError(str(error)) from error
