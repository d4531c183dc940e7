"""Wasted memory accesses: how much of what a static batch reads serves no answer (Magnus, section III-C).

A row that runs in a batch of input length L(B) and generation length G(B) reads L(B) + g cells of K and V in the
iteration after its g-th token. Reads of its padding are wasted, and all reads after its end token are. Lengths are
whole tokens; functions take numbers, or arrays of them as floats. It knows no request and no queue.

The waste of a row in a batch is

    WMA_gen(p)  = G(p)·(L(B) - L(p))                     equation 2: reads of padding while it generates its answer
    WMA_wait(p) = Σ_{g=G(p)..G(B)} (g + L(B))            equation 3: reads while it waits for the others to end
    WMA(B)      = max_p (WMA_gen(p) + WMA_wait(p))       equation 4

As in the paper the sum of equation 3 has both its ends, so the row that ends last is charged for one iteration too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from scheduler.serving_time.bilinear import FloatArray

Count = TypeVar("Count", int, "FloatArray")


class Lengths(NamedTuple):
    """A request's L(p) and G(p), or a batch's L(B) and G(B), in tokens."""

    input: int
    generation: int

    @property
    def columns(self) -> int:
        """Tokens of K and V at the end."""
        return self.input + self.generation


def batch_lengths(rows: Iterable[Lengths]) -> Lengths:
    """L(B) and G(B), the longest of each."""
    inputs, generations = zip(*rows, strict=True)
    return Lengths(max(inputs), max(generations))


def useful_reads(input_length: Count, generation_length: Count) -> Count:
    """Σ_{g=0..G(p)-1} (L(p) + g): reads of a row's own tokens up to its end token, the same in every batch."""
    return generation_length * input_length + generation_length * (generation_length - 1) // 2


def all_reads(input_length: Count, generation_length: Count) -> Count:
    """Σ_{g=0..G(B)} (L(B) + g): reads of any one row of a batch, with equation 3's one iteration more."""
    return (generation_length + 1) * input_length + generation_length * (generation_length + 1) // 2


def wma_from_least(input_length: Count, generation_length: Count, least_useful_reads: Count) -> Count:
    """WMA(B) without a look at its rows: from L(B), G(B) and the least useful reads of any row.

    All rows of a batch read the same number of cells, and what is not useful is wasted: the terms G(p)·L(B) of
    equations 2 and 3 cancel, so WMA_gen(p) + WMA_wait(p) = all_reads(B) - useful_reads(p). The most wasteful row is
    the one with the fewest useful reads, whichever batch it is in, so a batch need not remember the others.
    """
    return all_reads(input_length, generation_length) - least_useful_reads


def memory_tokens(rows: Count, input_length: Count, generation_length: Count) -> Count:
    """MEM(B) / Δ = N·(L(B) + G(B)): tokens of K and V that a batch holds at its end (equation 5)."""
    return rows * (input_length + generation_length)
