"""When serving times are learnt, from what, and what comes of it."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.measure.timing import SliceTiming
from scheduler.learner import Lesson, Submit, inline
from scheduler.plan import Assignment, Plan
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.nearest import INTERVAL, BatchLearning, Nearest, estimate_error, served_batch
from tests.scheduler.fakes import request

SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)


def ended(generated: int, seconds: float, *, length: int = 4, at: float = 0.0, intact: bool = True) -> Assignment:
    """A batch of two rows, the longer of which has generated `generated` tokens here, after 3 before."""
    rows = (request(0, length, generated=3), request(1, 2))
    assignment = Assignment(Plan(rows, estimate=7.0), 0, sent=0.0, intact=intact)
    rows[0].generated += generated
    rows[1].generated += 1
    assignment.began, assignment.ended = at, at + seconds
    return assignment


class Pupil(Nearest):
    """Estimates a second an iteration, and remembers what it was taught; its copies learn from one neighbour."""

    def __init__(self) -> None:
        super().__init__(SECOND_A_TOKEN, neighbours=1)
        self.taught: list[list[SliceTiming]] = []

    def fit(self, batches: Sequence[SliceTiming]) -> None:
        self.taught.append(list(batches))


def learning_at_once(pupil: Pupil, submit: Submit = inline) -> BatchLearning:
    """It learns from the first batch that ends, and an interval later again."""
    learning = BatchLearning(pupil, submit)
    learning.learner.next = 0.0
    return learning


def test_a_batch_that_did_not_run_as_planned_teaches_nothing() -> None:
    assert served_batch(ended(5, 6.5, intact=False)) is None
    unseen = ended(5, 6.5)
    unseen.began = None
    assert served_batch(unseen) is None
    learning = learning_at_once(Pupil())
    learning.on_finish(ended(10, 20.0, intact=False), 0.0)
    assert learning.learner.latest is None


def test_every_interval_brings_the_surprises_of_its_batches() -> None:
    """20 s for 10 estimated surprise; 11 do not, being less than 2 s more; 100 for 90 are less than 20 % more."""
    pupil = Pupil()
    learning = BatchLearning(pupil, inline)
    for generated, seconds, now in ((10, 20.0, 1000.0), (12, 24.0, 1010.0), (10, 11.0, 1060.0), (90, 100.0, 1119.0)):
        learning.on_finish(ended(generated, seconds), now)
    assert (learning.learner.latest, pupil.taught) == (None, [])
    learning.on_finish(ended(12, 24.0), 1120.0)
    assert learning.learner.latest == Lesson(5, 3, np.sqrt((10**2 + 12**2 + 1 + 10**2 + 12**2) / 5))
    assert [sorted(one.seconds for one in taught) for taught in pupil.taught] == [[20.0, 24.0, 24.0]]
    assert SliceTiming(2, 7, 10, 20.0) in pupil.taught[0]
    learning.on_finish(ended(10, 20.0), 1239.0)
    assert len(pupil.taught) == 1
    learning.on_finish(ended(10, 10.0), 1240.0)
    assert [len(taught) for taught in pupil.taught] == [3, 4], "the set grows"
    assert learning.learner.changes == 2


def test_an_interval_without_surprises_changes_nothing() -> None:
    pupil = Pupil()
    learning = learning_at_once(pupil)
    learning.on_finish(ended(10, 10.0), 5.0)
    assert learning.learner.latest == Lesson(1, 0, 0.0) and pupil.taught == [] and learning.learner.changes == 0


def test_the_work_is_done_where_it_is_submitted_to() -> None:
    pupil, desk = Pupil(), list[Callable[[], None]]()
    learning = learning_at_once(pupil, desk.append)
    for now in (0.0, INTERVAL):
        learning.on_finish(ended(10, 20.0), now)
    assert pupil.taught == [] and len(desk) == 2
    for work in desk:
        work()
    assert [len(taught) for taught in pupil.taught] == [0, 2], "a single batch can be held against no other"


@pytest.mark.parametrize("batches", [4, 60])
@pytest.mark.parametrize("seed", range(3))
def test_where_times_only_scatter_estimates_stay_the_profiles(batches: int, seed: int) -> None:
    """Fitted to what was off by more than a fifth, estimates came out a quarter further off than the profile's."""
    rng = np.random.default_rng(seed)

    def draw(count: int, factor: float) -> list[SliceTiming]:
        lengths, errors = rng.integers(20, 300, count), factor * np.exp(rng.normal(0, 0.3, count))
        return [SliceTiming(2, 7, int(one), float(one * error)) for one, error in zip(lengths, errors, strict=True)]

    nearest = Nearest(SECOND_A_TOKEN)
    learning = BatchLearning(nearest, inline)
    for factor, least, most in ((1.0, 0.9, 1.05), (2.0, 0.0, 0.8)):
        for _ in range(30):
            learning.learner.rows += draw(batches, factor)
            learning.learner.begin()
        fresh = draw(2000, factor)
        share = estimate_error(nearest, fresh) / estimate_error(SECOND_A_TOKEN, fresh)
        assert least < share <= most, f"machines take {factor} times as long as the profile says"


def test_a_lesson_that_fails_is_logged_and_leaves_the_estimates(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Pupil):
        def fit(self, batches: Sequence[SliceTiming]) -> None:
            raise MemoryError("no room")

    learning = learning_at_once(Stubborn())
    with caplog.at_level(logging.ERROR):
        learning.on_finish(ended(10, 20.0), 0.0)
    assert "learning serving times failed" in caplog.text and learning.learner.latest is None


def test_estimates_follow_a_machine_that_became_slower() -> None:
    nearest = Nearest(SECOND_A_TOKEN)
    learning = BatchLearning(nearest, inline)
    errors = []
    for minute in range(12):
        for generated in (20, 40, 60):
            learning.on_finish(ended(generated, 2.0 * generated), 60.0 * minute)
        if learning.learner.latest is not None:
            errors.append(learning.learner.latest.rmse)
    assert errors[0] > 40 and errors[-1] < 1
    assert nearest.estimate(2, 7, 40) == pytest.approx(80, rel=0.05)
