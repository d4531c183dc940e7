"""Algorithm 1: against every way to part the rows, and in numbers."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler.batching.dp import BatchPart, partition, slice_seconds
from scheduler.serving_time.bilinear import Bilinear

MODEL = Bilinear(p1=1e-4, p2=1e-3, p3=1e-5, p4=5e-3, d1=1e-6, d2=1e-4, d3=1e-6, d4=2e-2)
BOUNDLESS = 10**9


def parts_of(
    lengths: list[int], model: Bilinear = MODEL, fresh: list[bool] | None = None, iterations: int = 128, **bounds: int
) -> tuple[BatchPart, ...]:
    """In `bounds` of `capacity` and `most` rows."""
    rows, unread = np.array(lengths, np.int64), np.array([True] * len(lengths) if fresh is None else fresh, np.bool_)
    most_rows = np.minimum(bounds.get("capacity", BOUNDLESS) // (rows + iterations), bounds.get("most", BOUNDLESS))
    return partition(rows, unread, model, iterations=iterations, most_rows=most_rows)


def sizes(parts: tuple[BatchPart, ...]) -> list[int]:
    return [part.stop - part.start for part in parts]


def seconds(lengths: list[int], fresh: list[bool], model: Bilinear, iterations: int) -> float:
    """T_serve of one batch, summed iteration by iteration."""
    prompts = [length for length, unread in zip(lengths, fresh, strict=True) if unread]
    prefill = model.prefill(float(len(prompts)), float(max(prompts))) if prompts else 0.0
    columns = [float(max(lengths) + step) for step in range(1, iterations + 1)]
    copies = sum(model.copy(float(length)) for length, unread in zip(lengths, fresh, strict=True) if not unread)
    return prefill + copies + sum(model.iteration(float(len(lengths)), column) for column in columns)


def partitions(rows: int) -> Iterator[list[slice]]:
    """Every way to cut `rows` rows into contiguous parts."""
    for choice in range(2 ** (rows - 1)):
        cuts = [0, *(place for place in range(1, rows) if choice >> (place - 1) & 1), rows]
        yield [slice(*ends) for ends in zip(cuts, cuts[1:], strict=False)]


coefficients = st.floats(0, 1, allow_subnormal=False)
models = st.builds(Bilinear, *(coefficients for _ in range(10)))


@given(
    rows=st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=12),
    model=models,
    iterations=st.integers(1, 6),
    capacity=st.integers(1, 400),
    most=st.integers(1, 12),
)
def test_no_way_to_part_the_rows_takes_less_time(
    rows: list[tuple[int, bool]], model: Bilinear, iterations: int, capacity: int, most: int
) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    lengths, fresh = [row[0] for row in rows], [row[1] for row in rows]

    def cost(parts: list[slice]) -> float:
        return sum(seconds(lengths[part], fresh[part], model, iterations) for part in parts)

    def allowed(part: slice) -> bool:
        size = len(lengths[part])
        return size == 1 or (size <= most and size * (lengths[part][-1] + iterations) <= capacity)

    found = parts_of(lengths, model, fresh, iterations, capacity=capacity, most=most)
    chosen = [slice(part.start, part.stop) for part in found]
    assert [place for part in chosen for place in range(part.start, part.stop)] == list(range(len(rows)))
    assert all(allowed(part) for part in chosen)
    best = min(cost(parts) for parts in partitions(len(rows)) if all(allowed(part) for part in parts))
    assert cost(chosen) == pytest.approx(best)
    assert sum(part.seconds for part in found) == pytest.approx(best)


def plainly(lengths: list[int], capacity: int, most: int, iterations: int) -> list[int]:
    """Algorithm 1 line by line; returns the sizes of the batches."""
    least, cuts = [0.0], [0]
    for i, length in enumerate(lengths, start=1):
        best, cut, j = least[i - 1] + MODEL.serve(1.0, length, iterations), i - 1, i - 1
        while j > 0 and i - j + 1 <= most and (i - j + 1) * (length + iterations) <= capacity:
            total = least[j - 1] + MODEL.serve(float(i - j + 1), length, iterations)
            if total < best:
                best, cut = total, j - 1
            j -= 1
        least.append(best)
        cuts.append(cut)
    found, i = [], len(lengths)
    while i > 0:
        found.append(i - cuts[i])
        i = cuts[i]
    return found[::-1]


@pytest.mark.parametrize(("capacity", "most"), [(BOUNDLESS, BOUNDLESS), (20_000, BOUNDLESS), (BOUNDLESS, 12)])
def test_the_batches_are_those_of_the_paper(capacity: int, most: int) -> None:
    lengths = sorted(np.random.default_rng(5).integers(1, 1024, 300).tolist())
    assert sizes(parts_of(lengths, capacity=capacity, most=most)) == plainly(lengths, capacity, most, 128)


def test_short_prompts_are_not_padded_to_a_long_one() -> None:
    """SCLS, figure 11: fifteen requests of 10 tokens and one of 1,024."""
    assert sizes(parts_of([10] * 15 + [1024])) == [15, 1] and parts_of([]) == ()


def test_a_batch_is_estimated_by_the_prompts_that_it_reads() -> None:
    lengths, fresh = np.array([10, 20, 30]), np.array([True, True, False])
    whole = seconds([10, 20, 30], [True, True, False], MODEL, 4)
    assert slice_seconds(lengths, fresh, MODEL, 4) == pytest.approx(whole)
    copying = replace(MODEL, c1=0.5, c0=2.0)
    copied = slice_seconds(lengths, fresh, copying, 4) - slice_seconds(lengths, fresh, MODEL, 4)
    assert copied == pytest.approx(0.5 * 30 + 2), "of the row that brings its K and V"
    assert slice_seconds(lengths, np.array([False] * 3), MODEL, 4) == pytest.approx(MODEL.decode(3.0, 30.0, 4.0))
