"""The prefix cache's blocks on a device."""

from collections import OrderedDict

import torch

from engine.kv.row_kv import RowKv, to_host

MEMORY_SHARE = 0.25  # of free device memory


class DeviceBlocks:
    """Copies of host blocks, LRU; none where the device is the host. Executor's thread only."""

    def __init__(self, device: torch.device, capacity: int | None = None) -> None:
        """Bytes; None: MEMORY_SHARE."""
        if capacity is None:
            capacity = int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
        self.capacity = capacity
        self.bytes = 0
        self._device = device
        self._copies: OrderedDict[RowKv, RowKv] = OrderedDict()

    def make(self, kv: RowKv, columns: slice) -> RowKv:
        """To host memory, in the current stream; keeps a device copy."""
        both = torch.stack((kv.keys[:, :, columns], kv.values[:, :, columns]))  # one copy, and one to the host
        block = there = RowKv(*both)
        if not there.in_host_memory:
            stream = torch.cuda.current_stream(self._device)
            kv.hold(stream)
            block = RowKv(*to_host(both, wait=False), copied=stream.record_event())
        self._keep(block, there)
        return block

    def read(self, block: RowKv) -> RowKv:
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
