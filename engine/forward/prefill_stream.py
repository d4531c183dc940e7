"""Where prefill runs: on CUDA in a stream beside decode. Its results may be used elsewhere once it is `done`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from engine.kv.row_kv import RowKv


class PrefillStream:
    """One piece of work at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._event: torch.cuda.Event | None = None
        self._fetched: torch.cuda.Event | None = None

    @property
    def done(self) -> bool:
        """Whether the latest work has ended."""
        return self._event is None or self._event.query()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Launch in this stream."""
        with torch.cuda.stream(self._stream):
            yield
        if self._stream is not None:
            self._event = self._stream.record_event()

    def copying(self) -> AbstractContextManager[object]:
        """Copy finished work to host memory, in a stream beside prefill and decode."""
        return torch.cuda.stream(self._copies)

    def hand_over(self, *tensors: Tensor) -> None:
        """Let the decode stream use these tensors: their memory must not be reused here before that use ends."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._device))

    def fetched(self, kv: RowKv) -> RowKv:
        """The KV cache on the device, copied from pinned memory beside decode; await it before reading."""
        if self._stream is None or kv.keys.is_cuda:
            return kv
        with torch.cuda.stream(self._stream):
            there = kv.to(self._device)
        self._fetched = self._stream.record_event()
        self.hand_over(there.keys, there.values)
        return there

    def await_fetched(self) -> None:
        """Make the decode stream, not the host, wait for what was fetched."""
        if self._fetched is not None:
            torch.cuda.current_stream(self._device).wait_event(self._fetched)
            self._fetched = None
