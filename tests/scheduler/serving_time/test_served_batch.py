"""What is known of a batch that nobody joined, figure by figure."""

from __future__ import annotations

import numpy as np
import pytest

from engine.messages import Terms
from scheduler.batching.dp import slice_seconds
from scheduler.plan import Assignment, Plan
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.served_batch import ClosedBatch, closed_batch
from tests.scheduler.fakes import request

CLOSED = Terms(closed=True, iterations=8)


def ended(terms: Terms = CLOSED, *, generated: tuple[int, ...] = (9, 3, 8, 9)) -> Assignment:
    """A batch of two fresh rows, one of which ended early, one that kept its K and V, and one that had lost them."""
    rows = (request(0, 10), request(1, 20), request(2, 30), request(3, 5))
    rows[2].generated, rows[3].generated, rows[3].lacks_kv = 3, 7, True
    assignment = Assignment(Plan(rows, terms), 0, sent=1.0)
    for one, tokens in zip(rows, generated, strict=True):
        one.lacks_kv = False  # as a dispatcher does when it has sent them
        one.generated += tokens
    assignment.began, assignment.ended = 2.0, 6.5
    return assignment


def test_what_was_fresh_is_told_as_it_was_when_the_plan_was_sent() -> None:
    """The longest row has 33 tokens, the longest fresh one 20; a fresh row's first token is no iteration."""
    assert closed_batch(ended()) == ClosedBatch(
        rows=4, input_length=33, iterations=8, fresh_rows=3, fresh_length=20, copied_tokens=33, seconds=4.5
    )


@pytest.mark.parametrize(
    ("generated", "iterations"), [((9, 3, 8, 9), 8), ((5, 3, 8, 5), 8), ((5, 3, 2, 5), 4), ((1, 1, 0, 1), 0)]
)
def test_iterations_are_those_of_the_row_that_stayed_longest(generated: tuple[int, ...], iterations: int) -> None:
    found = closed_batch(ended(generated=generated))
    assert found is not None and found.iterations == iterations


def test_nothing_is_known_of_others() -> None:
    assert closed_batch(ended(Terms())) is None, "others could join"
    assert closed_batch(ended(Terms(closed=True, prefill_together=False))) is None, "it had several prefills"
    broken, unseen = ended(), ended()
    broken.intact, unseen.began = False, None
    assert closed_batch(broken) is None and closed_batch(unseen) is None


def test_a_batch_is_estimated_as_it_was_planned() -> None:
    model = Bilinear(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    lengths, fresh = np.array([10, 20, 30, 40]), np.array([True, True, False, False])
    batch = ClosedBatch(4, 40, 16, 2, 20, 70, seconds=1.0)
    assert batch.estimate(model) == pytest.approx(slice_seconds(lengths, fresh, model, 16))
    kept = ClosedBatch(2, 40, 16, 0, 0, 70, seconds=1.0)
    assert kept.estimate(model) == pytest.approx(slice_seconds(lengths[2:], fresh[2:], model, 16))
    assert kept.copies(model) == 9 * 70 + 2 * 10
