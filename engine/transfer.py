"""Asynchronous copies through pinned memory."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def send(values: Sequence[object], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def move(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class Staging:
    """Pinned memory of one small tensor of numbers that is sent often."""

    def __init__(self, target: Tensor) -> None:
        self._target = target
        self._host = torch.zeros(target.shape, dtype=target.dtype, pin_memory=target.is_cuda)
        self._sent: torch.cuda.Event | None = None

    def edit(self) -> NDArray[np.int64]:
        """To rewrite before `send`; waits for the last copy."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._host.numpy()

    def send(self) -> None:
        self._target.copy_(self._host, non_blocking=True)
        if self._target.is_cuda:
            self._sent = torch.cuda.current_stream(self._target.device).record_event()


class Fetch:
    """Waits only for work queued before."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = tensors
        if tensors[0].is_cuda:
            pinned = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
            self._copies = tuple(to.copy_(one, non_blocking=True) for to, one in zip(pinned, tensors, strict=True))
            self._event = torch.cuda.current_stream(tensors[0].device).record_event()

    def read(self) -> Sequence[Tensor]:
        if self._event is not None:
            self._event.synchronize()
        return self._copies
