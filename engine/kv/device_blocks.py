"""The prefix cache's blocks on one device, above those in host memory."""

from __future__ import annotations

from collections import OrderedDict

import torch

from engine.kv.row_kv import RowKv, to_host

MEMORY_SHARE = 0.25  # of the device memory left free


class DeviceBlocks:
    """Device copies of blocks in host memory, least recently used out first; none where host memory is the device's.

    Belongs to the executor's thread.
    """

    def __init__(self, device: torch.device, capacity: int | None = None) -> None:
        """`capacity` in bytes; None: MEMORY_SHARE."""
        if capacity is None:
            capacity = int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
        self.capacity = capacity
        self.bytes = 0
        self._device = device
        self._copies: OrderedDict[RowKv, RowKv] = OrderedDict()  # by block in host memory

    def make(self, kv: RowKv, columns: slice) -> RowKv:
        """Copy these columns to a block in host memory, in the current stream; the device keeps a copy."""
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
        """The block on the device, ready for the current stream."""
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
        self._copies.clear()
        self.bytes = 0

    def _keep(self, block: RowKv, there: RowKv) -> None:
        self._copies[block] = there
        self.bytes += there.bytes
        while self.bytes > self.capacity:
            self.bytes -= self._copies.popitem(last=False)[1].bytes
