"""Where prefill runs: on a CUDA device in a stream of its own, beside decode steps; elsewhere here and now.

What the stream has made may be used outside it once it is `done`: the host has then seen its work end.
"""

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
        """Return when the latest work has ended."""
        if self._event is not None:
            self._event.synchronize()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Launch in this stream what is computed within."""
        with torch.cuda.stream(self._stream):
            yield
        if self._stream is not None:
            self._event = self._stream.record_event()

    def copying(self) -> AbstractContextManager[object]:
        """Copy to host memory within, in a stream beside prefill and decode, what the host has seen computed."""
        return torch.cuda.stream(self._copies)

    def hand_over(self, *tensors: Tensor) -> None:
        """Let the stream that decodes use what this one has made: memory that is freed there must not be given to
        this stream's next work before that use has ended.
        """
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._device))

    def fetched(self, kv: RowKv) -> RowKv:
        """K and V on the device: copied from pinned host memory, if that is where they are, while decode goes on.

        To be read once they are awaited.
        """
        if self._stream is None or kv.keys.is_cuda:
            return kv
        with torch.cuda.stream(self._stream):
            there = kv.to(self._device)
        self._fetched = self._stream.record_event()
        self.hand_over(there.keys, there.values)
        return there

    def await_fetched(self) -> None:
        """Let the stream that decodes go on only when what was fetched is there; the host does not wait."""
        if self._fetched is not None:
            torch.cuda.current_stream(self._device).wait_event(self._fetched)
            self._fetched = None
