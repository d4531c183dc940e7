"""K and V of one row outside the arena. Knows nothing of where they came from or go to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowKv:
    """K and V of one row, or a block of its columns, outside the arena: each (layers, kv_heads, length, head_dim).

    They compare by identity.
    """

    keys: Tensor
    values: Tensor
    copied: torch.cuda.Event | None = field(default=None, kw_only=True)
    """When they are there, should they still be on their way to host memory."""

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def first(self, tokens: int) -> RowKv:
        """Those of the row's first tokens, in the same memory."""
        return RowKv(self.keys[:, :, :tokens], self.values[:, :, :tokens])

    @property
    def in_host_memory(self) -> bool:
        return not self.keys.is_cuda

    def to(self, device: torch.device) -> RowKv:
        """These K and V on a device; the host does not wait for copies from pinned memory."""
        return RowKv(*(part.to(device, non_blocking=True) for part in (self.keys, self.values)))

    def to_host(self) -> RowKv:
        """These K and V in host memory."""
        return self if self.in_host_memory else RowKv(to_host(self.keys), to_host(self.values))

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Keep the device's memory, should these go, until a stream has done what it was given so far."""
        for part in (self.keys, self.values):
            part.record_stream(stream)

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


def to_host(tensor: Tensor, *, wait: bool = True) -> Tensor:
    """A contiguous copy in host memory; from a CUDA device in pinned memory, so that its way back can overlap.

    Where the host does not `wait`, the copy is under way in the present stream.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    if tensor.is_cuda and not wait:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return copy.copy_(tensor, non_blocking=not wait)
