"""The compiled pass where memory or threads end, in a process of its own: what it says, and whether it goes on.

python -m tests.models.native.short_of_memory FOLDER
"""

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from models.native.decoder import NativeDecoder
from models.network.kv_store import KvCells
from models.network.loader import load

ROOM = 2**22
"""Bytes of memory that are left; what is asked for takes a multiple of that."""


class Cells:
    """A KvStore of one row whose newest token comes behind all others."""

    def __init__(self, network: NativeDecoder, columns: int) -> None:
        fields = network.fields
        self.keys = torch.zeros((fields.layers, 1, fields.kv_heads, columns, fields.head_dim))
        self.values, self.columns = self.keys.clone(), columns

    def begin_pass(self, rows: int, new: int) -> KvCells:
        return KvCells(self.keys, self.values, slice(self.columns - new, self.columns), slice(0, self.columns))


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def refused(work: Callable[[], object]) -> bool:
    """Whether it raises what the engine takes for a lack of memory, and nothing else."""
    with limited(resource.RLIMIT_AS, psutil.Process().memory_info().vms + ROOM):
        try:
            work()
        except torch.OutOfMemoryError as error:
            return str(error).startswith("out of memory: the compiled pass")
    return False


def main(folder: Path, what: str, threads: int) -> None:
    torch.set_num_threads(threads)
    network = load(folder, dtype="float32").network
    assert isinstance(network, NativeDecoder)
    new = {"tokens": 60_000, "threads": 12}[what]
    tokens, positions = torch.full((1, new), 5), torch.arange(new)[None] % 100
    cells, last = Cells(network, new), (torch.tensor([0]), torch.tensor([new - 1]))
    few = torch.full((1, 12), 5), torch.arange(12)[None], None, Cells(network, 12)

    def compute() -> torch.Tensor:
        return network.forward(tokens, positions, None, cells, last)

    before = network.forward(*few)
    assert refused(network.twin if what == "threads" else compute)
    assert torch.equal(network.forward(*few), before)
    if what != "tokens":  # 60,000 tokens take a minute to read
        assert torch.equal(compute(), network.twin().forward(tokens, positions, None, cells, last))


main(Path(sys.argv[1]), "threads", 16)  # the stacks of five that ended may be left for others
main(Path(sys.argv[1]), "tokens", 2)
