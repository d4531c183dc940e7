"""Prefill runs in a CUDA stream beside decode; results may be used once `done`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from engine.kv.row_kv import RowKv


class PrefillStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._event: torch.cuda.Event | None = None
        self._fetched: torch.cuda.Event | None = None

    @property
    def done(self) -> bool:
        return self._event is None or self._event.query()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield
        if self._stream is not None:
            self._event = self._stream.record_event()

    def copying(self) -> AbstractContextManager[object]:
        """To host memory, in a third stream."""
        return torch.cuda.stream(self._copies)

    def hand_over(self, *tensors: Tensor) -> None:
        """Decode reads these tensors: their memory is reused afterwards."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._device))

    def fetched(self, kv: RowKv) -> RowKv:
        """Copied from pinned memory beside decode; await before reading."""
        if self._stream is None or kv.keys.is_cuda:
            return kv
        with torch.cuda.stream(self._stream):
            there = kv.to(self._device)
        self._fetched = self._stream.record_event()
        self.hand_over(there.keys, there.values)
        return there

    def await_fetched(self) -> None:
        """On the device, without blocking the host."""
        if self._fetched is not None:
            torch.cuda.current_stream(self._device).wait_event(self._fetched)
            self._fetched = None
