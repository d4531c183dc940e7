"""The memory that a piece of work takes at its peak, beyond what was in use before it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import torch

T = TypeVar("T")

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
