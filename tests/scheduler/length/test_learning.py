"""Learning while serving: the paper's rule by hand, and the loop on a virtual clock."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from scheduler.learner import Lesson
from scheduler.length import learning as module
from scheduler.length.forest import Examples, Forest, Growth, grow
from scheduler.length.learning import FEWEST_JUDGES, Learning, ServedRow, examples, is_worse, surprises
from tests.scheduler.fakes import VirtualClock


def row(predicted: float, generated: int) -> ServedRow:
    return ServedRow((1.0, float(generated)), predicted, generated)


SURPRISING = [
    (30, 20, False),  # 10 tokens are not more than 10
    (31, 20, True),
    (9, 20, True),
    (10, 20, False),
    (1100, 1000, False),  # 10 % are not more than 10 %
    (1101, 1000, True),
    (899, 1000, True),
    (900, 1000, False),
    (1015, 1000, False),  # more than 10 tokens, less than 10 %
    (3, 1, False),  # 200 %, but 2 tokens
]


@pytest.mark.parametrize(("predicted", "generated", "surprising"), SURPRISING)
def test_errors_above_10_tokens_and_10_percent_surprise(predicted: float, generated: int, surprising: bool) -> None:
    assert surprises([row(predicted, generated)]) == ((row(predicted, generated),) if surprising else ())


def test_rmse_by_hand() -> None:
    assert module.row_error([row(13, 10), row(6, 10)]) == pytest.approx((25 / 2) ** 0.5)


def test_a_runaway_answer_teaches_what_the_others_are_like() -> None:
    rows = [row(9, length) for length in (20, 30, 25)] + [replace(row(9, 8155), cut=True)]
    assert examples(rows).lengths.tolist() == [20, 30, 25, 30]
    assert examples(rows[3:], present(40, 50, 60)).lengths.tolist() == [60]


class PredictorContext(VirtualClock):
    """Time in which the rows of one lesson after another end, and a trainer that notes what it is given."""

    def __init__(self, *lessons: Sequence[ServedRow]) -> None:
        super().__init__()
        self.lessons = list(lessons)
        self.trained: list[list[float]] = []
        self.judges: list[list[int]] = []
        self.error: Exception | None = None
        self.done = asyncio.Event()
        self.learning: Learning | None = None
        self.learned: list[tuple[float, Lesson | None]] = []

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        assert self.learning is not None
        if not self.lessons:
            self.done.set()
            await asyncio.Event().wait()
        for row in self.lessons.pop(0):
            self.learning.add(row)
        await super().wait(event, until)

    async def train(self, training: Examples, judges: Sequence[ServedRow]) -> None:
        if self.learning is not None:
            self.learned.append((self.time, self.learning.learner.latest))
        self.trained.append(training.lengths.tolist())
        self.judges.append([judge.generated for judge in judges])
        if self.error is not None:
            raise self.error


def present(*lengths: float) -> Examples:
    return Examples(np.zeros((len(lengths), 2), dtype=np.float32), np.array(lengths, dtype=np.float32))


async def run(learning: Learning, around: PredictorContext) -> None:
    around.learning = learning
    task = asyncio.create_task(learning.run())
    await around.done.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_every_three_minutes_surprises_join_the_training_set_and_a_forest_is_grown() -> None:
    around = PredictorContext([row(100, 50), row(52, 50)], [], [row(5, 70)])
    await run(Learning(around.train, around, present(1, 2)), around)
    assert around.trained == [[1, 2, 50], [1, 2, 50, 70]]
    error = float(np.sqrt((50**2 + 2**2) / 2))
    assert around.learned == [(module.INTERVAL, Lesson(2, 1, error)), (3 * module.INTERVAL, Lesson(1, 1, 65))]
    assert module.INTERVAL == 180


async def test_every_fifth_row_is_held_out_for_good_so_that_forests_can_be_judged_by_it() -> None:
    rows = [row(500, length) for length in range(1, 13)]
    around = PredictorContext(rows[:7], rows[7:])
    await run(Learning(around.train, around), around)
    assert around.trained == [[1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 6, 7, 8, 9, 11, 12]]
    assert around.judges == [[5], [5, 10]]


def forest(*lengths: float) -> Forest:
    return grow(present(*lengths), Growth(trees=2))


def test_a_forest_is_worse_whose_mean_error_on_the_judges_is_larger() -> None:
    judges = [row(70, 50)] * FEWEST_JUDGES
    assert is_worse(forest(80), forest(40), judges) and not is_worse(forest(40), forest(80), judges)
    assert not is_worse(forest(40), forest(40), judges)
    assert is_worse(forest(80), None, judges), "they were served with an error of 20"
    assert not is_worse(forest(60), None, judges)
    assert not is_worse(forest(80), forest(40), judges[1:]), "too few to judge"


def test_a_forest_that_foresees_more_of_an_answer_that_was_cut_is_not_worse_for_it() -> None:
    judges = [replace(row(70, 50), cut=True)] * FEWEST_JUDGES
    assert not is_worse(forest(80), forest(50), judges)
    assert is_worse(forest(40), forest(45), judges)


async def test_without_a_forest_every_row_is_learned_from_then_surprises_and_nothing_where_all_was_foreseen() -> None:
    around = PredictorContext([row(50, 50)], [row(50, 50), row(90, 50)], [row(50, 50)])
    learning = Learning(around.train, around)
    await run(learning, around)
    assert around.trained == [[50], [50, 50]]
    assert learning.learner.latest == Lesson(1, 0, 0.0)


async def test_a_lesson_that_fails_is_counted_and_its_rows_are_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    around = PredictorContext([row(100, 50)], [row(100, 60)])
    around.error = RuntimeError("no memory")
    learning = Learning(around.train, around, present(1))
    await run(learning, around)
    assert around.trained == [[1, 50], [1, 50, 60]]
    assert learning.learner.failures == 2
    assert "learning lengths failed, estimates stay as they are" in caplog.text


async def test_the_training_set_keeps_the_newest_rows() -> None:
    around = PredictorContext()
    learning = Learning(around.train, around, present(*[1.0] * module.MOST_EXAMPLES))
    learning.add(row(100, 50))
    await learning.learn()
    assert (len(around.trained[0]), around.trained[0][-1]) == (module.MOST_EXAMPLES, 50)
