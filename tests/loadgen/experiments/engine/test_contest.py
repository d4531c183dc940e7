from __future__ import annotations

from collections.abc import Sequence

import torch

from loadgen.experiments.engine.feed import Job, Turn
from loadgen.experiments.engine.measure import measured
from loadgen.experiments.engine.runners import contest

CPU = torch.device("cpu")
JOBS = [Job((1, 2), 3), Job((1, 2, 3), 5)]


class Scripted:
    """Takes so many seconds a run, in turn; notes each run in a common log."""

    def __init__(self, name: str, log: list[str], seconds: Sequence[float], error: Exception | None = None) -> None:
        self.name = name
        self._log = log
        self._seconds = list(seconds)
        self._error = error

    def run(self, jobs: Sequence[Job]) -> Turn:
        self._log.append(self.name)
        if self._error is not None:
            raise self._error
        return Turn(self._seconds.pop(0), (0.1, 0.3, 0.2), tuple(job.output_len for job in jobs))


def test_rounds_interleave_and_the_first_does_not_count() -> None:
    log: list[str] = []
    runners = [Scripted("a", log, [99, 1, 2, 4]), Scripted("b", log, [99, 2, 2, 2])]
    a, b = contest(runners, lambda _: JOBS, 3, CPU)
    assert log == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert a.rates == [8, 4, 2] and a.rate == 4 and b.rates == [4, 4, 4]
    assert a.step == 0.2 and a.trouble is None
    assert a.peak_bytes is None or a.peak_bytes >= 0


def test_who_cannot_run_says_why_once_and_the_others_go_on() -> None:
    log: list[str] = []
    runners = [Scripted("a", log, [1, 1, 1]), Scripted("b", log, [], OSError("no kernel"))]
    a, b = contest(runners, lambda _: JOBS, 2, CPU)
    assert len(a.rates) == 2 and b.rates == []
    assert b.trouble == "OSError: no kernel" and log.count("b") == 1


def test_an_answer_of_another_length_is_no_result() -> None:
    class Lazy(Scripted):
        def run(self, jobs: Sequence[Job]) -> Turn:
            return Turn(1.0, (), (3, 4))

    (lazy,) = contest([Lazy("lazy", [], [])], lambda _: JOBS, 1, CPU)
    assert lazy.rates == [] and "1 of 2 answers" in (lazy.trouble or "")


def test_memory_is_that_of_the_peak_not_of_the_end() -> None:
    size = 64 * 2**20

    def work() -> int:
        return len(bytearray(size))

    result, peak = measured(work, CPU)
    assert result == size
    assert peak is None or size * 0.9 < peak < size * 2
