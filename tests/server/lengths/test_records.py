"""What is recorded of requests and learned from their ends."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from engine.messages import REPETITION, FinishReason
from engine.sampling.params import SamplingParams
from scheduler.journal.file import RequestEntry, read
from scheduler.journal.writer import Journal
from scheduler.length.features import LengthQuery
from scheduler.length.learning import ServedRow
from scheduler.length.prediction import LengthDistribution, Prediction, Source
from scheduler.programs.program import Kind, Program
from scheduler.request import Request, Times
from scheduler.wait_estimate.completion import Expected
from server.config import FrontConfig
from server.lengths.lengths import Lengths
from tests.scheduler.entries import request_entry


class Learned:
    """What is learned from."""

    def __init__(self) -> None:
        self.rows: list[ServedRow] = []

    def add(self, row: ServedRow) -> None:
        self.rows.append(row)


CONFIG = FrontConfig(strategy="magnus")
QUERY = LengthQuery("Translate.", "Hello", 3, 8)
FORESEEN = Prediction(6.5, Source.FOREST, (1.0, 2.0))


def ended_request(generated: int = 5, *, replay: int | None = None) -> Request:
    sampling = SamplingParams(max_tokens=8, replay_tokens=replay)
    times = Times(100.0, assigned=100.5, started=101.0, first_token=102.0, end=104.0)
    return Request(7, (1, 2, 3, 4), sampling, times, generated=generated, runs=2)


def never(request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
    raise AssertionError("nothing comes late")


def learned(length: int, *, whole: bool) -> ServedRow:
    return ServedRow((1.0, 2.0), 6.5, length, cut=not whole)


class Stage:
    """Records over a journal in a file."""

    def __init__(self, path: Path, config: FrontConfig = CONFIG) -> None:
        self.journal = Journal(path)
        self.journal.start()
        self.learning = Learned()
        self.lengths = Lengths(config, "tiny", self.journal, learning=cast(Any, self.learning))

    def end(self, request: Request, reason: FinishReason | None, prediction: Prediction | None = FORESEEN) -> None:
        self.lengths.note(request, QUERY, prediction, revise=never)
        self.lengths.on_end(request, reason, 104.0)

    def requests(self) -> list[RequestEntry]:
        self.journal.close()
        return list(read(self.journal.path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.mark.parametrize("sync", [False, True])
def test_the_reader_of_an_answer_waits_for_its_record_where_that_is_promised(path: Path, sync: bool) -> None:
    stage, request = Stage(path, replace(CONFIG, journal_sync=sync)), ended_request()
    stage.end(request, FinishReason.STOP)
    assert (request.recorded is not None) is sync
    if request.recorded is not None:
        assert request.recorded.result(20) and len(list(read(path))) == 1
    stage.journal.close()


def test_a_finished_request_is_recorded_without_its_texts(path: Path) -> None:
    stage, before = Stage(path), time.time()
    stage.end(ended_request(), FinishReason.STOP)
    (entry,) = stage.requests()
    assert before <= entry.finished_at <= time.time()
    lengths = {"input_length": 4, "user_input_length": 3, "max_tokens": 8, "generated": 5, "predicted": 6.5}
    times = {"assigned": 0.5, "started": 1.0, "first_token": 2.0, "latency": 4.0}
    assert entry == request_entry(entry.finished_at, **lengths, **times, runs=2, features=(1.0, 2.0))


def test_a_run_and_what_was_promised_and_asked_for_are_recorded_beside_what_came_true(path: Path) -> None:
    stage, request = Stage(path), ended_request()
    since, request.program = request.times.came, Program("run", Kind(), 0.0)
    request.expected, request.promised, request.coverage = Expected(since, 0, 0.0, point=2.0, high=5.0), since + 6, 0.9
    stage.end(request, FinishReason.STOP)
    (entry,) = stage.requests()
    assert (entry.program, entry.promised, entry.asked, entry.coverage, entry.latency) == ("run", 5.0, 6.0, 0.9, 4.0)


def test_texts_are_recorded_where_the_operator_allows_it(path: Path) -> None:
    stage = Stage(path, replace(CONFIG, journal_prompts=True))
    stage.end(ended_request(replay=5), FinishReason.LENGTH, None)
    (entry,) = stage.requests()
    assert (entry.instruction, entry.user_input, entry.replayed) == ("Translate.", "Hello", True)
    assert (entry.predicted, entry.source, entry.features) == (None, None, ())


REPEATED = replace(ended_request(), stop_reason=REPETITION)
WANTED = replace(REPEATED, sampling=replace(REPEATED.sampling, stop=("repetition",)))
OUTCOMES = [
    (FinishReason.STOP, ended_request(), "stop", learned(5, whole=True)),
    (FinishReason.STOP, REPEATED, "repetition", learned(5, whole=False)),
    (FinishReason.STOP, WANTED, "stop", learned(5, whole=True)),
    (FinishReason.LENGTH, ended_request(8), "length", learned(8, whole=False)),
    (FinishReason.LENGTH, ended_request(replay=5), "length", learned(5, whole=True)),
    (FinishReason.ERROR, ended_request(), "error", None),
    (None, ended_request(), "cancelled", None),
]


@pytest.mark.parametrize("case", OUTCOMES)
def test_only_answers_that_nobody_broke_off_are_heard_of(path: Path, case: Any) -> None:
    reason, ended, outcome, row = case
    stage = Stage(path)
    stage.end(ended, reason)
    assert stage.learning.rows == ([] if row is None else [row])
    assert [entry.outcome for entry in stage.requests()] == [outcome]


def test_a_request_is_recorded_once_and_not_kept() -> None:
    learning, request = Learned(), ended_request()
    lengths = Lengths(CONFIG, "tiny", learning=cast(Any, learning))
    lengths.note(request, QUERY, FORESEEN, revise=never)
    for _ in range(2):
        lengths.on_end(request, FinishReason.STOP, 104.0)
    assert len(learning.rows) == 1
