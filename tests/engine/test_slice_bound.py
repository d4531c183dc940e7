"""The planner's bound holds in the arena: no batch of the dynamic program ever outgrows it, and under load they leave
little of it unused (SCLS, equation 7)."""

import numpy as np
import torch

from engine.forward.batch import choose_view
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from models.network.kv_store import KvShape
from scheduler.batching.dp import partition
from scheduler.serving_time.bilinear import Bilinear
from tests.engine.invariants import check

SHAPE = KvShape(layers=1, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))
MODEL = Bilinear(p1=1e-4, p2=1e-3, p3=1e-5, p4=5e-3, d1=1e-6, d2=1e-4, d3=1e-6, d4=2e-2)
CAPACITY, MOST_ROWS = 512, 64
SHORTEST, LONGEST = 16, 100
"""Tokens of rows: so that memory is the limit, never the rows."""
BATCHES = 4000


def batches(rng: np.random.Generator, waiting: int, iterations: int) -> list[list[int]]:
    """The lengths of each batch that so many waiting requests are parted into."""
    lengths = np.sort(rng.integers(SHORTEST, LONGEST, waiting))
    parts = partition(
        lengths,
        rng.random(len(lengths)) < 0.7,
        MODEL,
        iterations=iterations,
        most_rows=np.minimum(CAPACITY // (lengths + iterations), MOST_ROWS),
    )
    return [lengths[part.start : part.stop].tolist() for part in parts]


def serve(arena: KvArena, lengths: list[int], iterations: int) -> int:
    """Run one batch from its rows' arrival to the end of its slice; returns the cells it had at its widest.

    Rows arrive in the view that a batch of that many rows needs now, and it grows as the running batch's does.
    """
    needed = max(lengths) + 1
    view = choose_view(arena.capacity_tokens, arena.max_rows, len(lengths), needed, 2 * needed)
    assert view is not None
    arena.reshape(*view)
    for length in lengths:
        cells = torch.ones(SHAPE.layers, SHAPE.kv_heads, length, SHAPE.head_dim)
        arena.insert(RowKv(cells, cells))
    for _ in range(iterations):
        if arena.window == arena.columns:
            wider = arena.window + 1
            view = choose_view(arena.capacity_tokens, arena.max_rows, arena.live, wider, wider)
            assert view is not None
            arena.reshape(*view)
        arena.open()
    cells_used = arena.live * arena.window
    while arena.live:
        arena.remove(arena.live - 1)
    return cells_used


def test_thousands_of_random_batches_never_overflow_the_arena_and_fill_it_under_load() -> None:
    """ArenaFull would raise. Every other time the queue is long, which is load; else it may be anything."""
    rng = np.random.default_rng(11)
    arena = KvArena(SHAPE, CAPACITY, max_rows=MOST_ROWS)
    served, fills = 0, []
    with torch.inference_mode():
        for turn in range(BATCHES):
            iterations = int(rng.choice([1, 2, 5]))
            loaded = turn % 2 == 0
            planned = batches(rng, int(rng.integers(200, 400) if loaded else rng.integers(1, 40)), iterations)
            for lengths in planned:
                used = serve(arena, lengths, iterations)
                assert used == len(lengths) * (max(lengths) + iterations) <= CAPACITY
                assert len(lengths) < MOST_ROWS
                if loaded:
                    fills.append(used / CAPACITY)
            served += len(planned)
            if served >= BATCHES:
                break
    check(arena)
    assert served >= BATCHES and len(fills) > BATCHES / 2
    assert np.mean(fills) >= 0.85
