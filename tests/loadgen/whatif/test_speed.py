"""The speed of a machine by how long its requests took, by hand."""

from __future__ import annotations

import pytest

from loadgen.simulate.simulation import Served
from loadgen.simulate.speed_curve import SpeedCurve
from loadgen.whatif.speed import find_speed


def serve(*lasting: float) -> tuple[Served, ...]:
    """Requests one after another, which take so many seconds each."""
    requests, now = list[Served](), 0.0
    for seconds in lasting:
        requests.append(Served(0.0, now, now + seconds, now + seconds, 1, 1, 1, None))
        now += seconds
    return tuple(requests)


def work_through(curve: SpeedCurve, count: int) -> tuple[Served, ...]:
    """The same with a second of work each, on a machine of this speed."""
    lasting, now = list[float](), 0.0
    for _ in range(count):
        lasting.append(curve.pace(now, 1.0))
        now += lasting[-1]
    return serve(*lasting)


def test_few_requests_tell_one_speed() -> None:
    """Four seconds for a second of work are a quarter of the speed, from begin to end and after it."""
    curve, slowdown = find_speed(serve(*[4.0] * 3), lambda curve: work_through(curve, 3))
    assert slowdown == pytest.approx(4.0, rel=0.01)
    assert curve.pace(5.0, 1.0) == pytest.approx(4.0, rel=0.01) == curve.pace(100.0, 1.0)


def test_each_stretch_has_its_own_speed() -> None:
    """Twenty requests of a second, then twenty of four: the first half is four times as fast."""
    curve, slowdown = find_speed(serve(*[1.0] * 20, *[4.0] * 20), lambda curve: work_through(curve, 40))
    assert curve.pace(5.0, 1.0) == pytest.approx(1.0, rel=0.02)
    assert curve.pace(50.0, 1.0) == pytest.approx(4.0, rel=0.02)
    assert slowdown == pytest.approx(100 / 40, rel=0.02)
    assert curve.pace(18.0, 3.0) == pytest.approx(2.0 + 4.0, rel=0.03), "two seconds of work before the change"


def test_a_request_of_no_time_tells_nothing_and_breaks_nothing() -> None:
    curve, _ = find_speed(serve(2.0, 0.0, 2.0), lambda curve: work_through(curve, 3))
    assert 0 < curve.pace(0.0, 1.0) < 100
