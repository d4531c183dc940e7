"""Timings that the reports of an executor's steps give."""

from typing import Any

from engine.messages import BatchShape, FinishReason, RowUpdate, StepReport, StepStats
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import StepTimings

MODEL = Bilinear(p1=0, p2=0, p3=0, p4=0, d1=0.001, d2=0, d3=0, d4=0.1)
"""An iteration takes 0.1 s, and 1 ms a cell."""


class Steps:
    """Reports of one executor."""

    def __init__(self, model: Bilinear | None = None) -> None:
        self.model = model
        self._reader = StepTimings()
        self._step = 0

    def see(
        self, seconds: float, tally: StepStats, *updated: int, steps: int = 1, end: bool = False, **more: Any
    ) -> list[tuple[object, ...]]:
        self._step += steps
        reason = FinishReason.STOP if end else None
        updates = tuple(RowUpdate(row_id, (1,), finish_reason=reason) for row_id in updated)
        report = StepReport(0, self._step, updates, BatchShape(), seconds, tally=tally, **more)
        found = self._reader.read(report, self.model)
        return [(phase, one.rows, one.length, round(one.seconds, 9)) for phase, one in found]


def test_a_decode_step_is_known_by_its_rows_and_the_columns_of_its_window_and_some_together_by_their_mean() -> None:
    assert Steps().see(0.2, StepStats(generated=2, invalid=1, reads=90), 0, 1) == [("decode", 3, 30, 0.2)]
    tally = StepStats(generated=12, reads=2 * (10 + 11 + 12 + 13 + 14 + 15))
    assert Steps().see(0.6, tally, 0, 1, steps=6) == [("decode", 2, 12, 0.1)]


def test_a_group_of_prompts_is_timed_from_its_first_chunk_to_its_last_whatever_runs_between() -> None:
    steps = Steps()
    assert steps.see(0.5, StepStats(prompt=60, pad=4), begun=(7, 8)) == []
    assert steps.see(0.1, StepStats(generated=1, reads=20), 3) == [], "the next chunk may be under way"
    assert steps.see(0.4, StepStats(prompt=30, generated=1), 7) == []
    assert steps.see(0.2, StepStats(prompt=6, generated=1), 8) == [("prefill", 2, 50, 1.1)]


def test_a_step_that_decodes_beside_a_chunk_counts_for_the_group_less_its_decode() -> None:
    found = Steps(MODEL).see(0.5, StepStats(prompt=40, generated=3, reads=50), 7, 3, 4, begun=(7,))
    assert found == [("prefill", 1, 40, 0.35)]


def test_a_decode_step_in_which_a_row_joins_or_ends_tells_nothing() -> None:
    steps = Steps()
    two, three = StepStats(generated=2, reads=60), StepStats(generated=3, reads=90)
    assert (steps.see(0.2, two, 1, 2), steps.see(0.2, three, 1, 2, 3)) == ([("decode", 2, 30, 0.2)], [])
    assert steps.see(0.2, three, 1, 2, 3) == [("decode", 3, 30, 0.2)]
    assert steps.see(0.2, three, 1, 2, 3, end=True) == []
    assert steps.see(0.2, two, 1, 2) == [("decode", 2, 30, 0.2)]


def test_no_price_of_decode_rows_that_enter_by_shape_and_a_clock_that_stands_still_tell_nothing() -> None:
    unpriced, priced = Steps(), Steps(MODEL)
    assert unpriced.see(0.5, StepStats(prompt=40, generated=3, reads=50), 7, 3, 4, begun=(7,)) == []
    assert unpriced.see(0.5, StepStats(prompt=40, generated=1), 7) == []
    assert priced.see(0.5, StepStats(prompt=40, pad=200, generated=6), 1, 2, 3, 4, 5, 7, begun=(7,)) == []
    assert priced.see(0.0, StepStats(generated=2, reads=50), 3, 4) == []


def test_a_group_that_was_cancelled_is_forgotten_with_the_next() -> None:
    steps = Steps()
    assert steps.see(0.5, StepStats(prompt=60), begun=(7,)) == []
    assert steps.see(0.3, StepStats(prompt=10, generated=1), 9, begun=(9,)) == [("prefill", 1, 10, 0.3)]
