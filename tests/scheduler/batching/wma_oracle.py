"""Wasted memory accesses as the paper's equations have them: row by row (Magnus, section III-C)."""

from collections.abc import Iterable

from scheduler.batching.wma import BatchLengths, batch_lengths


def wma_gen(row: BatchLengths, batch: BatchLengths) -> int:
    """WMA_gen(p) = G(p)·(L(B) - L(p)): reads of padding while a row generates its answer (equation 2)."""
    return row.generation * (batch.input - row.input)


def wma_wait(row: BatchLengths, batch: BatchLengths) -> int:
    """WMA_wait(p) = Σ_{g=G(p)..G(B)} (g + L(B)) in closed form: reads while it waits for the others (equation 3)."""
    terms = batch.generation - row.generation + 1
    return terms * (2 * batch.input + row.generation + batch.generation) // 2


def wma(rows: Iterable[BatchLengths]) -> int:
    """WMA(B) = max_p (WMA_gen(p) + WMA_wait(p)) (equation 4)."""
    rows = tuple(rows)
    batch = batch_lengths(rows)
    return max(wma_gen(row, batch) + wma_wait(row, batch) for row in rows)
