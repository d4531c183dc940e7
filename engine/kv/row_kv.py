from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowKv:
    """K and V of a row or block, each (layers, kv_heads, length, head_dim)."""

    keys: Tensor
    values: Tensor
    copied: torch.cuda.Event | None = field(default=None, kw_only=True)  # on their way to host memory

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def first(self, tokens: int) -> RowKv:
        return RowKv(self.keys[:, :, :tokens], self.values[:, :, :tokens])

    @property
    def in_host_memory(self) -> bool:
        return not self.keys.is_cuda

    def to(self, device: torch.device) -> RowKv:
        return RowKv(*(part.to(device, non_blocking=True) for part in (self.keys, self.values)))

    def to_host(self) -> RowKv:
        """Its own memory, no part of a group's."""
        own = self.in_host_memory and self.keys.is_contiguous()
        return self if own else RowKv(to_host(self.keys), to_host(self.values))

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Until the stream's work so far is done."""
        for part in (self.keys, self.values):
            part.record_stream(stream)

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


def to_host(tensor: Tensor, *, wait: bool = True) -> Tensor:
    """Contiguous, pinned from CUDA; asynchronous without `wait`."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    if tensor.is_cuda and not wait:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return copy.copy_(tensor, non_blocking=not wait)
