"""Weights in huge pages: a step on a CPU reads all of them, and looks up an address for each page that they lie in.

Most systems give huge pages to memory only for which it is asked, and neither torch nor malloc asks. Memory for K and
V is left alone: rows touch it here and there, and huge pages stalled the first steps.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn, ops

MADV_COLLAPSE = 25
"""Advice to Linux, from 6.1 on, to move what lies in small pages into huge ones at once; addresses stay."""

SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
"""Tells the bytes of a huge page, where the system has some."""

log = logging.getLogger(__name__)


def move_weights(network: nn.Module) -> None:
    """Move a network's weights on the CPU into huge pages, as far as the system does that."""
    try:
        size = int(SIZE_FILE.read_text())
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, ValueError, AttributeError) as error:
        log.debug("weights stay in small pages: %s", error)
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in find_runs(network, size):
        if advise(start, end - start, MADV_COLLAPSE):
            reason = ctypes.get_errno()  # memory of a file, or a hole beside the weights
            log.debug("%d MiB of weights stay in small pages, or some of them: error %d", (end - start) >> 20, reason)


def find_runs(network: nn.Module, size: int) -> list[tuple[int, int]]:
    """First address and end of each run of pages of `size` bytes that hold weights on the CPU.

    A weight is often smaller than a page, so that what lies around it belongs to the run.

        page     |               |               |               |               |
        weights      [---------][-----]  [----]                         [---]
        runs     [-------------------------------)               [--------------)
    """
    runs = list[tuple[int, int]]()
    for first, last in sorted(_find_ranges(network)):
        start, end = first // size * size, -(-last // size) * size
        if runs and start <= runs[-1][1]:
            start, end = runs[-1][0], max(end, runs[-1][1])
            runs.pop()
        runs.append((start, end))
    return runs


def _find_ranges(network: nn.Module) -> Iterator[tuple[int, int]]:
    """Address of the first byte of each weight on the CPU, and of what follows its last."""
    for module in network.modules():
        for weight in (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()):
            if not isinstance(weight, Tensor) or weight.device.type != "cpu":
                continue
            if weight.is_mkldnn:
                first, count = int(ops.mkldnn.data_ptr(weight)), int(ops.mkldnn._nbytes(weight))
            else:
                first, count = weight.data_ptr(), weight.nbytes
            if count:
                yield first, first + count
