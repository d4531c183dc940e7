"""The prefix cache's blocks on one device, above those in host memory: where a prompt was read they stay, copied to the
host beside all else; one that begins alike reads them there, and those that had to go are copied in again.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from engine.kv.row_kv import RowKv, to_host

MEMORY_SHARE = 0.25
"""Part of the memory that weights, graphs and the batch's K and V leave free on a device, which blocks may take."""


class DeviceBlocks:
    """Copies on a device of blocks in host memory; the least recently used go when they take too many bytes.

    Where host memory is the device's, there are none. Belongs to the thread of the device's executor.
    """

    def __init__(self, device: torch.device, capacity: int | None = None) -> None:
        """`capacity`: bytes that they may take; None: MEMORY_SHARE."""
        if capacity is None:
            capacity = int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
        self.capacity = capacity
        self.bytes = 0
        self._device = device
        self._copies: OrderedDict[RowKv, RowKv] = OrderedDict()  # by their blocks in host memory

    def make(self, kv: RowKv, columns: slice) -> RowKv:
        """A block of these K and V in host memory, to which the present stream copies it; it stays on the device."""
        there = RowKv(*(part[:, :, columns].clone() for part in (kv.keys, kv.values)))
        block = there
        if not there.in_host_memory:
            stream = torch.cuda.current_stream(self._device)
            kv.hold(stream)
            parts = [to_host(part, wait=False) for part in (there.keys, there.values)]
            block = RowKv(*parts, copied=stream.record_event())
        self._keep(block, there)
        return block

    def read(self, block: RowKv) -> RowKv:
        """A block on the device, for the present stream, which waits until it is there."""
        if block.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(block.copied)
        there = self._copies.get(block)
        if there is None:
            there = block.to(self._device)
            self._keep(block, there)
        else:
            self._copies.move_to_end(block)
        if not there.in_host_memory:
            there.hold(torch.cuda.current_stream(self._device))
        return there

    def clear(self) -> None:
        """Give all memory back."""
        self._copies.clear()
        self.bytes = 0

    def _keep(self, block: RowKv, there: RowKv) -> None:
        self._copies[block] = there
        self.bytes += there.bytes
        while self.bytes > self.capacity:
            self.bytes -= self._copies.popitem(last=False)[1].bytes
