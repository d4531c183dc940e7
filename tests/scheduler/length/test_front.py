"""A predictor that answers at once: what stands in when it fails or tells what cannot be."""

from __future__ import annotations

import pytest

from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.length.front import InProcess
from scheduler.length.history import LengthHistory
from scheduler.length.prediction import Estimate, Source

QUERY = LengthQuery("translate", "a", 1, 100)


def estimate(query: LengthQuery, length: float = 7.0) -> Estimate:
    return Estimate((1.0,), LengthDistribution.certain(length), Source.OWN)


def test_a_prediction_and_its_wait_are_counted() -> None:
    waits: list[float] = []
    front = InProcess(estimate, LengthHistory(), waits.append)
    found = front.predict(QUERY)
    assert (found.length, found.source, found.features, found.late) == (7.0, Source.OWN, (1.0,), None)
    assert front.sources == {Source.OWN: 1} and len(waits) == 1


@pytest.mark.parametrize("length", [float("nan"), float("inf"), -1.0, None])
def test_a_predictor_that_raises_or_tells_what_cannot_be_is_told_once_and_replaced_by_the_usual_length(
    length: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    history = LengthHistory()
    history.add("translate", 42)

    def fail(query: LengthQuery) -> Estimate:
        if length is None:
            raise RuntimeError("broken")
        return estimate(query, length)

    front = InProcess(fail, history)
    found = [front.predict(QUERY) for _ in range(2)]
    assert [(one.length, one.source, one.distribution) for one in found] == [(42, Source.HISTORY, None)] * 2
    assert (front.failures, caplog.text.count("the length predictor failed")) == (2, 1)
