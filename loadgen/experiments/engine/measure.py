"""What work takes: seconds in a thread of its own that an interrupt stops, memory at its peak, and the least that a
decode step can take, weights and live K and V once over the memory bus.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from models.native.decoder import NativeDecoder
from models.network.linear import InferenceLinear
from models.threads import run_in_own_thread

T = TypeVar("T")


class Interrupted(Exception):
    """Raised by work that was asked to stop."""


def apart(work: Callable[[threading.Event], T]) -> T:
    """Return or raise the same as `work`, which is given an event that asks it to stop; an interrupt sets it."""
    stop = threading.Event()
    return run_in_own_thread(partial(work, stop), stop)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Sets the kernel's high-water mark of resident memory back (proc(5))."""


def measured(work: Callable[[], T], device: torch.device) -> tuple[T, int | None]:
    """Do work; returns its result and its peak in bytes, None on a system that does not tell."""
    gc.collect()
    return _on_cuda(work, device) if device.type == "cuda" else _on_host(work)


def _on_cuda(work: Callable[[], T], device: torch.device) -> tuple[T, int]:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = work()
    return result, torch.cuda.max_memory_allocated(device) - before


def _on_host(work: Callable[[], T]) -> tuple[T, int | None]:
    _trim()
    before = psutil.Process().memory_info().rss
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return work(), None
    result = work()
    return result, max(0, _peak() - before)


def _trim() -> None:
    """Give freed memory back, else the next one to run would be given it for nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _peak() -> int:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


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
    if size is None:
        room = psutil.virtual_memory().available // 8 if device.type == "cpu" else BUFFER_BYTES
        size = min(BUFFER_BYTES, room)
    return apart(lambda stop: _measure(device, clock, size, stop))


def _measure(device: torch.device, clock: Callable[[], float], size: int, stop: threading.Event) -> float:
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways: tuple[tuple[Callable[[], Tensor], int], ...] = (
        (source.sum, source.nbytes),
        (lambda: target.copy_(source), 2 * source.nbytes),
    )
    best = 0.0
    for work, moved in ways * REPEATS:
        if stop.is_set():
            raise Interrupted
        begin = read_clock(device, clock)
        work()
        best = max(best, moved / (read_clock(device, clock) - begin))
    return best


def read_clock(device: torch.device, clock: Callable[[], float]) -> float:
    """The time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
