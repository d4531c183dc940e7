"""The least time of a decode step: that of reading the weights and the live K and V once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from models.native.decoder import NativeDecoder
from models.network.linear import InferenceLinear


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


BUFFER_BYTES = 2**30
"""Read at once; far more than a cache holds."""

REPEATS = 7


@dataclass(frozen=True, slots=True)
class Floor:
    """The bounds of a decode step on this machine."""

    bandwidth: float
    """Bytes a second."""
    weight_bytes: int
    """Read in each step."""
    kv_bytes_per_token: int

    def step(self, rows: int, input_len: int, output_len: int) -> float:
        """Seconds of a decode step halfway through the outputs."""
        live = rows * (input_len + output_len / 2)
        return (self.weight_bytes + live * self.kv_bytes_per_token) / self.bandwidth


def weight_bytes(network: torch.nn.Module) -> int:
    """Bytes of weights that a step reads: all but an embedding table that is not the head's too, each once."""
    weights = {
        id(weight): weight.nbytes
        for module in network.modules()
        if not isinstance(module, torch.nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    kinds = (InferenceLinear, NativeDecoder)
    kept = sum(layer.weight_bytes for layer in network.modules() if isinstance(layer, kinds))
    return kept + sum(weights.values())


def measure_bandwidth(
    device: torch.device, clock: Callable[[], float] = time.perf_counter, size: int | None = None
) -> float:
    """Bytes a second, with all threads: the best of some sums, which only read, and some copies, which write too.

    size   bytes that are read at once; None: BUFFER_BYTES, or less where memory is short
    """
    room = psutil.virtual_memory().available // 8 if device.type == "cpu" else BUFFER_BYTES
    source = torch.ones((size or min(BUFFER_BYTES, room)) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways: tuple[tuple[Callable[[], Tensor], int], ...] = (
        (source.sum, source.nbytes),
        (lambda: target.copy_(source), 2 * source.nbytes),
    )
    best = 0.0
    for work, moved in ways * REPEATS:
        begin = read_clock(device, clock)
        work()
        best = max(best, moved / (read_clock(device, clock) - begin))
    return best


def read_clock(device: torch.device, clock: Callable[[], float]) -> float:
    """The time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
