"""Lengths in a server: what is asked about and reaches the dispatcher, estimates that come late, and records."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
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
from scheduler.length.oracle import oracle
from scheduler.length.prediction import Answer, Estimate, LengthDistribution, Prediction, Source
from scheduler.programs.program import Kind, Program
from scheduler.request import Request, Times
from scheduler.wait_estimate.completion import Expected
from server.config import FrontConfig
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths, Revise
from tests.scheduler.entries import request_entry
from tests.scheduler.fakes import request
from tests.server.live import Live, chat_body, live_server

LIKELY = LengthDistribution.certain(7.25)


class FakeLengths:
    """Foresees 7.25 tokens for everybody, once it may."""

    def __init__(self) -> None:
        self.queries: list[LengthQuery] = []
        self.noted: list[tuple[Request, LengthQuery, Prediction | None]] = []
        self.asked = asyncio.Event()
        self.may = asyncio.Event()
        self.may.set()
        self.left = asyncio.Event()

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        self.queries.append(query)
        self.asked.set()
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return Prediction(7.25, Source.FOREST, (1.0,), LIKELY)

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        self.noted.append((request, query, prediction))


class Late(FakeLengths):
    """Guesses, and what it foresees of a prompt other than "slow" is still to come; of that one it says nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Answer] = []

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        if query.user_input == "slow":
            return await super().predict(query, sampling)
        self.late.append(asyncio.get_running_loop().create_future())
        return Prediction(9.0, Source.HISTORY, late=self.late[-1])


class Oracle(FakeLengths):
    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        return oracle(sampling)


@pytest.fixture
async def lengths() -> FakeLengths:
    return FakeLengths()


@pytest.fixture
async def predicting(lengths: FakeLengths) -> AsyncIterator[Live]:
    async with live_server(lengths=lengths) as live:
        yield live


def asked(lengths: FakeLengths) -> list[tuple[str, str, int, int]]:
    return [(one.instruction, one.user_input, one.user_input_length, one.max_tokens) for one in lengths.queries]


async def test_a_prediction_reaches_dispatcher_records_and_client(predicting: Live, lengths: FakeLengths) -> None:
    messages = [{"role": "system", "content": "Translate."}, {"role": "user", "content": "Grüße"}]
    reply = await predicting.chat(messages=messages, max_tokens=9)
    (request,) = predicting.dispatcher.submitted
    assert (request.predicted_length, request.distribution) == (7.25, LIKELY)
    assert asked(lengths) == [("Translate.", "Grüße", 7, 9)]  # a token is a byte here
    ((noted, query, prediction),) = lengths.noted
    assert (noted, query) == (request, lengths.queries[0]) and prediction is not None
    assert reply["metrics"]["predicted_tokens"] == 7.2


async def test_equal_prompts_are_asked_about_once_and_count_together(predicting: Live, lengths: FakeLengths) -> None:
    reply = await predicting.complete(prompt=["one", "three"], n=2, max_tokens=3)
    assert [one.user_input for one in lengths.queries] == ["one", "three"]
    assert len(lengths.noted) == 4
    assert [one.predicted_length for one in predicting.dispatcher.submitted] == [7.25] * 4
    assert (reply["metrics"]["predicted_tokens"], reply["usage"]["completion_tokens"]) == (29.0, 12)


async def test_a_request_arrives_before_it_is_predicted(predicting: Live, lengths: FakeLengths) -> None:
    lengths.may.clear()
    before = predicting.dispatcher.now()
    call = asyncio.create_task(predicting.chat())
    await lengths.asked.wait()
    predicted = predicting.dispatcher.now()
    lengths.may.set()
    await call
    assert before <= predicting.dispatcher.submitted[0].times.arrival <= predicted


async def test_a_client_that_leaves_while_it_is_predicted_costs_nothing(predicting: Live, lengths: FakeLengths) -> None:
    lengths.may.clear()
    call = asyncio.create_task(predicting.chat())
    await lengths.asked.wait()
    call.cancel()
    await lengths.left.wait()
    assert predicting.dispatcher.submitted == []


async def test_what_is_foreseen_too_late_for_a_call_is_forgotten_with_it() -> None:
    lengths = Late()
    async with live_server(max_num_queued_tokens=100, lengths=lengths) as live:
        await live.complete(prompt=["one", "two"], n=2, max_tokens=3)
        assert [one.cancelled() for one in lengths.late] == [True, True]
        live.dispatcher.crowd(waiting=1)
        status, _ = await live.post("/v1/completions", {"prompt": "x" * 95, "max_tokens": 9})
        assert (status, lengths.late[2].cancelled()) == (429, True)


async def test_who_leaves_while_one_of_several_prompts_is_predicted_leaves_nothing_behind() -> None:
    lengths = Late()
    lengths.may.clear()
    async with live_server(lengths=lengths) as live:
        call = asyncio.create_task(live.complete(prompt=["one", "slow"], max_tokens=3))
        await lengths.asked.wait()
        call.cancel()
        await lengths.left.wait()
        with suppress(asyncio.CancelledError):
            await lengths.late[0]
    assert lengths.late[0].cancelled()


@pytest.mark.parametrize(
    ("fields", "instruction", "user_input"),
    [
        ({}, "", "Do.\n\nHi there"),
        ({"instruction_split": "blank-line"}, "Do.", "Hi there"),
        ({"instruction_split": "first-line"}, "Do.", "Hi there"),
        ({"instruction": "there"}, "there", "Do.\n\nHi"),
        ({"instruction": "there", "instruction_split": "first-line"}, "there", "Do.\n\nHi"),
    ],
)
async def test_a_request_can_say_what_its_instruction_is(
    predicting: Live, lengths: FakeLengths, fields: dict[str, object], instruction: str, user_input: str
) -> None:
    await predicting.chat(messages=[{"role": "user", "content": "Do.\n\nHi there"}], **fields)
    await predicting.complete(prompt="Do.\n\nHi there", **fields)
    await predicting.complete(prompt=list(b"Do.\n\nHi there"), **fields)
    assert [(one.instruction, one.user_input) for one in lengths.queries] == [(instruction, user_input)] * 3
    chat, text, ids = predicting.dispatcher.submitted
    assert chat.prompt == tuple(b"user:Do.\n\nHi there\nassistant:")  # the model reads what it would have read
    assert text.prompt == ids.prompt == tuple(b"Do.\n\nHi there")


@pytest.mark.parametrize("fields", [{"instruction_split": "last-line"}, {"instruction": 5}])
async def test_a_wrong_instruction_is_refused(predicting: Live, fields: dict[str, object]) -> None:
    status, reply = await predicting.post("/v1/chat/completions", chat_body(**fields))
    assert (status, reply["error"]["param"]) == (400, next(iter(fields)))


async def test_the_servers_own_split_holds_where_a_request_says_nothing(lengths: FakeLengths) -> None:
    split = InstructionSplit.FIRST_LINE
    async with live_server(lengths=lengths, instruction_split=split) as live:
        await live.chat(messages=[{"role": "user", "content": "Do.\nHi"}])
    assert [(one.instruction, one.user_input) for one in lengths.queries] == [("Do.", "Hi")]


async def test_an_oracle_wants_to_be_told() -> None:
    async with live_server(allow_replay=True, lengths=Oracle()) as live:
        status, reply = await live.post("/v1/completions", {"prompt": "Hi"})
        assert (status, reply["error"]["param"]) == (400, "replay_tokens")
        assert "replay_tokens" in reply["error"]["message"] and live.dispatcher.submitted == []
        reply = await live.complete(prompt="Hi", replay_tokens=5)
        assert reply["metrics"]["predicted_tokens"] == 5


LATE_QUERY = LengthQuery("Translate.", "Hello", 3, 8)
ESTIMATE = Estimate((1.0,), LengthDistribution.certain(5.0))


class Learned:
    """What is learned from."""

    def __init__(self) -> None:
        self.rows: list[ServedRow] = []

    def add(self, row: ServedRow) -> None:
        self.rows.append(row)


class LateStage(Learned):
    """Lengths, and what is told of estimates that come late."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []
        self.heard: list[tuple[int, float | None]] = []
        self.lengths = Lengths(FrontConfig(), "m", learning=cast(Any, self), observe_late=self.delays.append)

    def note(self, row_id: int, late: Answer) -> Request:
        """A request that has gone on with a guess."""
        one = request(row_id)
        self.lengths.note(one, LATE_QUERY, Prediction(7.0, Source.HISTORY, late=late), self.revise)
        return one

    def revise(self, request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        self.heard.append((request.row_id, length))

    def end(self, one: Request) -> None:
        one.generated = 4
        self.lengths.on_end(one, FinishReason.STOP, 1.0)


@pytest.fixture
def stage() -> LateStage:
    return LateStage()


def answer() -> Answer:
    return asyncio.get_running_loop().create_future()


async def test_all_requests_of_one_prompt_hear_of_its_estimate_once(stage: LateStage) -> None:
    shared, other = answer(), answer()
    for row_id, awaited in enumerate((shared, shared, other)):
        stage.note(row_id, awaited)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    assert stage.heard == [(0, 5.0), (1, 5.0)]
    assert len(stage.delays) == 2 and all(0 < delay < 60 for delay in stage.delays)
    assert not other.cancelled()


async def test_who_has_ended_hears_nothing_and_what_nobody_expects_is_cancelled(stage: LateStage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    stage.end(first)
    assert not shared.cancelled()
    stage.end(second)
    assert shared.cancelled()
    await asyncio.sleep(0)
    assert (stage.heard, stage.delays) == ([], [])


async def test_of_those_that_share_an_estimate_the_others_still_hear_of_it(stage: LateStage) -> None:
    shared = answer()
    first, second = stage.note(0, shared), stage.note(1, shared)
    stage.end(first)
    shared.set_result(ESTIMATE)
    await asyncio.sleep(0)
    stage.end(second)
    assert stage.heard == [(1, 5.0)]


async def test_who_ends_just_when_it_comes_hears_nothing(stage: LateStage) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(ESTIMATE)
    stage.end(one)
    await asyncio.sleep(0)
    assert stage.heard == []


@pytest.mark.parametrize(
    ("estimate", "learned"), [(Estimate((1.0,), None), [((1.0,), 7.0)]), (None, [])], ids=["no length", "failed"]
)
async def test_an_estimate_without_a_length_is_told_to_nobody_and_learned_from(
    stage: LateStage, estimate: Estimate | None, learned: list[object]
) -> None:
    came = answer()
    one = stage.note(0, came)
    came.set_result(estimate)
    await asyncio.sleep(0)
    stage.end(one)
    assert (stage.heard, stage.delays) == ([], [])
    assert [(row.features, row.predicted) for row in stage.rows] == learned


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


def test_a_run_is_recorded_by_its_name(path: Path) -> None:
    stage, request = Stage(path), ended_request()
    request.program = Program("run", Kind(), 0.0)
    stage.end(request, FinishReason.STOP)
    assert [one.program for one in stage.requests()] == ["run"]


def test_what_was_promised_and_asked_for_is_recorded_beside_what_came_true(path: Path) -> None:
    stage, request = Stage(path), ended_request()
    since = request.times.came
    request.expected, request.promised, request.coverage = Expected(since, 0, 0.0, point=2.0, high=5.0), since + 6, 0.9
    stage.end(request, FinishReason.STOP)
    (entry,) = stage.requests()
    assert (entry.promised, entry.asked, entry.coverage, entry.latency) == (5.0, 6.0, 0.9, 4.0)


def test_texts_are_recorded_where_the_operator_allows_it(path: Path) -> None:
    stage = Stage(path, replace(CONFIG, journal_prompts=True))
    stage.end(ended_request(replay=5), FinishReason.LENGTH, None)
    (entry,) = stage.requests()
    assert (entry.instruction, entry.user_input, entry.replayed) == ("Translate.", "Hello", True)
    assert (entry.predicted, entry.source, entry.features) == (None, None, ())


@pytest.mark.parametrize(("stop", "outcome", "whole"), [((), "repetition", False), (("repetition",), "stop", True)])
def test_an_answer_that_repeats_itself_is_cut(path: Path, stop: tuple[str, ...], outcome: str, whole: bool) -> None:
    stage, request = Stage(path), ended_request()
    request.sampling, request.stop_reason = replace(request.sampling, stop=stop), REPETITION
    stage.end(request, FinishReason.STOP)
    assert stage.learning.rows == [learned(5, whole=whole)]
    assert [entry.outcome for entry in stage.requests()] == [outcome]


@pytest.mark.parametrize(
    ("reason", "generated", "replay", "outcome", "row"),
    [
        (FinishReason.STOP, 5, None, "stop", learned(5, whole=True)),
        (FinishReason.LENGTH, 8, None, "length", learned(8, whole=False)),
        (FinishReason.LENGTH, 5, 5, "length", learned(5, whole=True)),
        (FinishReason.ERROR, 5, None, "error", None),
        (None, 5, None, "cancelled", None),
    ],
)
def test_only_answers_that_nobody_broke_off_are_heard_of(
    path: Path, reason: FinishReason | None, generated: int, replay: int | None, outcome: str, row: ServedRow | None
) -> None:
    stage = Stage(path)
    stage.end(ended_request(generated, replay=replay), reason)
    assert stage.learning.rows == ([] if row is None else [row])
    assert [entry.outcome for entry in stage.requests()] == [outcome]


def test_a_request_is_recorded_once_and_not_kept() -> None:
    learning, request = Learned(), ended_request()
    lengths = Lengths(CONFIG, "tiny", learning=cast(Any, learning))
    lengths.note(request, QUERY, FORESEEN, revise=never)
    for _ in range(2):
        lengths.on_end(request, FinishReason.STOP, 104.0)
    assert len(learning.rows) == 1
