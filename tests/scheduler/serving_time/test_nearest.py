"""Nearest neighbours: Magnus's rule of what to learn from, the regression by hand, what the profile's word counts, and
when serving times are learnt."""

import logging
from collections.abc import Callable, Sequence
from math import e, exp, log

import numpy as np
import pytest

from engine.measure.timing import SliceTiming
from scheduler.assembly import SERVING_TIMES
from scheduler.learner import Lesson, Submit, inline
from scheduler.plan import Assignment, Plan
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.machine import MachineModel
from scheduler.serving_time.nearest import INTERVAL, BatchLearning, Nearest, estimate_error, served_batch, surprises
from tests.scheduler.fakes import request

PROFILE = Bilinear(0, 0, 0, 0, 0, 0, 0, 1)  # a second an iteration
STEEP = Bilinear(1e-4, 0, 0, 0.1, 1e-6, 1e-3, 0, 0.03)


def test_a_batch_is_learnt_when_it_is_wrong_by_two_seconds_and_by_a_fifth() -> None:
    """Estimates are 1 s a token, so 100 tokens say 100 s and 4 say 4 s."""
    wrong, short, faster = SliceTiming(4, 100, 100, 126.0), SliceTiming(4, 100, 4, 6.5), SliceTiming(4, 100, 100, 80.0)
    right = SliceTiming(4, 100, 100, 124.0), SliceTiming(4, 100, 4, 6.0)  # 24 s are 19.4 %, and 33 % are 2 s
    assert surprises([wrong, short, *right, faster], PROFILE) == (wrong, short, faster)


@pytest.mark.parametrize("name", ["bilinear", "nearest"])
def test_every_estimator_begins_with_what_the_profile_says(name: str) -> None:
    estimator = SERVING_TIMES[name](MachineModel(PROFILE))
    assert estimator.estimate(1, 10, 7) == 7.0
    assert estimator.estimate_all(np.array([[1.0, 10.0, 7.0], [2.0, 30.0, 9.0]])).tolist() == [7.0, 9.0]


def test_the_profile_speaks_until_there_are_as_many_batches_as_neighbours() -> None:
    batches = [SliceTiming(1, 10, 7, 14.0), SliceTiming(1, 10, 9, 18.0)]
    nearest = Nearest(PROFILE, neighbours=2)
    said = []
    for known in (0, 1, 2, 0):
        nearest.fit(batches[:known])
        said.append(nearest.estimate(1, 10, 7))
    assert said == pytest.approx([7.0, 7.0, 14.0, 7.0], rel=0.01)


def test_neighbours_weigh_by_the_inverse_of_their_distance_and_the_profile_as_one_at_a_distance_of_1() -> None:
    nearest = Nearest(PROFILE, neighbours=2)
    nearest.fit([SliceTiming(1, 10, 10, 20.0), SliceTiming(1, 10, 40, 160.0), SliceTiming(1, 10, 4000, 1.0)])
    # 20 iterations are a factor of 2 from either; they took 2 and 4 times what the profile says of them.
    weight = 1 / log(2)
    assert nearest.estimate(1, 10, 20) == pytest.approx(20 * exp(weight * log(2 * 4) / (2 * weight + 1)))


def test_a_factor_of_any_feature_is_as_far() -> None:
    for near in (SliceTiming(8, 100, 10, 5.0), SliceTiming(4, 200, 10, 5.0), SliceTiming(4, 100, 20, 10.0)):
        nearest = Nearest(PROFILE, neighbours=1)
        nearest.fit([near])
        assert nearest.estimate(4, 100, 10) == pytest.approx(10 * exp(log(0.5) / log(2) / (1 / log(2) + 1)))


def test_what_was_never_seen_is_as_the_profile_says() -> None:
    """A regression of the times themselves was 20 % off all over the range that it was made of."""
    nearest = Nearest(STEEP, neighbours=1)
    nearest.fit([SliceTiming(1, 1, 1, STEEP.estimate(1, 1, 1))])
    for batch in ((1, 20, 5), (30, 200, 400), (256, 1024, 1000)):
        assert nearest.estimate(*batch) == pytest.approx(STEEP.estimate(*batch))


def test_a_surprise_tells_of_batches_many_times_as_large() -> None:
    nearest = Nearest(STEEP)
    nearest.fit([SliceTiming(rows, 100, 50, 1.5 * STEEP.estimate(rows, 100, 50)) for rows in range(1, 9)])
    assert nearest.estimate(8, 100, 400) > 1.3 * STEEP.estimate(8, 100, 400)
    far = nearest.estimate(8, 100, round(50 * e**4)) / STEEP.estimate(8, 100, round(50 * e**4))
    assert 1.2 < far < nearest.estimate(8, 100, 400) / STEEP.estimate(8, 100, 400), "the farther, the less"


def test_many_at_once_are_what_each_is_alone() -> None:
    nearest = Nearest(STEEP)
    nearest.fit([SliceTiming(rows, 16 * rows, 128, 3.0 * rows) for rows in (1, 2, 4, 8, 16, 32)])
    batches = [(1, 20, 5), (30, 200, 400), (8, 256, 128)]
    together = nearest.estimate_all(np.array(batches, dtype=np.float64))
    assert together.tolist() == pytest.approx([nearest.estimate(*batch) for batch in batches])


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
        super().__init__(PROFILE, neighbours=1)
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

    nearest = Nearest(PROFILE)
    learning = BatchLearning(nearest, inline)
    for factor, least, most in ((1.0, 0.9, 1.05), (2.0, 0.0, 0.8)):
        for _ in range(30):
            learning.learner.rows += draw(batches, factor)
            learning.learner.begin()
        fresh = draw(2000, factor)
        share = estimate_error(nearest, fresh) / estimate_error(PROFILE, fresh)
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
    nearest = Nearest(PROFILE)
    learning = BatchLearning(nearest, inline)
    errors = []
    for minute in range(12):
        for generated in (20, 40, 60):
            learning.on_finish(ended(generated, 2.0 * generated), 60.0 * minute)
        if learning.learner.latest is not None:
            errors.append(learning.learner.latest.rmse)
    assert errors[0] > 40 and errors[-1] < 1
    assert nearest.estimate(2, 7, 40) == pytest.approx(80, rel=0.05)
