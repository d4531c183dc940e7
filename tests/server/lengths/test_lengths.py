"""Lengths in a server: what is asked about, and what reaches the dispatcher."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import numpy as np
import pytest

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from scheduler.clock import background
from scheduler.learner import inline
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.learning import ServedRow
from scheduler.length.microbatch import MicroBatcher
from scheduler.length.online import OnlineForest
from scheduler.length.oracle import oracle
from scheduler.length.prediction import Answer, LengthDistribution, Prediction, Source
from scheduler.request import Request, State
from server.config import GatewayConfig
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths, PredictorContext, Revise, open_recorded_lengths
from tests.scheduler.fakes import VirtualClock, request
from tests.server.live import Live, live_server

LIKELY = LengthDistribution(np.array([5.0, 9.5], np.float32), np.array([0.5, 0.5], np.float32))


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


async def test_a_prediction_reaches_dispatcher_records_and_client(predicting: Live, lengths: FakeLengths) -> None:
    messages = [{"role": "system", "content": "Translate."}, {"role": "user", "content": "Grüße"}]
    reply = await predicting.chat(messages=messages, max_tokens=9)
    (request,) = predicting.dispatcher.submitted
    assert (request.predicted_length, request.distribution) == (7.25, LIKELY)
    ((noted, query, prediction),) = lengths.noted
    assert (noted, [query]) == (request, lengths.queries) and prediction is not None
    found = query.instruction, query.user_input, query.user_input_length, query.max_tokens
    assert found == ("Translate.", "Grüße", 7, 9)  # a token is a byte here
    status = (await predicting.get(f"/v1/requests/{reply['id']}")).json
    told = [one["predicted_tokens"] for one in (reply["metrics"], status["metrics"], *status["choices"])]
    assert [*told, status["estimate"]["predicted_tokens"]["median"]] == [5] * 4


async def test_equal_prompts_are_asked_about_once_and_count_together(predicting: Live, lengths: FakeLengths) -> None:
    reply = await predicting.complete(prompt=["one", "three"], n=2, max_tokens=3)
    assert [one.user_input for one in lengths.queries] == ["one", "three"]
    assert len(lengths.noted) == 4
    assert [one.predicted_length for one in predicting.dispatcher.submitted] == [7.25] * 4
    assert (reply["metrics"]["predicted_tokens"], reply["usage"]["completion_tokens"]) == (12.0, 12)


async def test_a_request_arrives_before_it_is_predicted(predicting: Live, lengths: FakeLengths) -> None:
    lengths.may.clear()
    before = predicting.dispatcher.now()
    call = asyncio.create_task(predicting.chat())
    await lengths.asked.wait()
    predicted = predicting.dispatcher.now()
    lengths.may.set()
    await call
    assert before <= predicting.dispatcher.submitted[0].times.arrival <= predicted


async def test_what_is_foreseen_too_late_for_a_call_is_forgotten_with_it() -> None:
    lengths = Late()
    async with live_server(max_num_queued_tokens=100, lengths=lengths) as live:
        await live.complete(prompt=["one", "two"], n=2, max_tokens=3)
        assert [one.cancelled() for one in lengths.late] == [True, True]
        live.dispatcher.crowd(waiting=1)
        await live.refused("/v1/completions", {"prompt": "x" * 95, "max_tokens": 9}, 429)
        assert lengths.late[2].cancelled()


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
        assert lengths.late[0].cancelled() and live.dispatcher.submitted == []


INSTRUCTIONS = [
    ({}, "", "Do.\n\nHi there"),
    ({"instruction_split": "blank-line"}, "Do.", "Hi there"),
    ({"instruction_split": "first-line"}, "Do.", "Hi there"),
    ({"instruction": "there"}, "there", "Do.\n\nHi"),
    ({"instruction": "there", "instruction_split": "first-line"}, "there", "Do.\n\nHi"),
]


@pytest.mark.parametrize("case", INSTRUCTIONS)
async def test_a_request_can_say_what_its_instruction_is(predicting: Live, lengths: FakeLengths, case: Any) -> None:
    fields, *parts = case
    await predicting.chat(messages=[{"role": "user", "content": "Do.\n\nHi there"}], **fields)
    await predicting.complete(prompt="Do.\n\nHi there", **fields)
    await predicting.complete(prompt=list(b"Do.\n\nHi there"), **fields)
    assert [[one.instruction, one.user_input] for one in lengths.queries] == [parts] * 3
    chat, text, ids = predicting.dispatcher.submitted
    assert chat.prompt == tuple(b"user:Do.\n\nHi there\nassistant:")  # the model reads what it would have read
    assert text.prompt == ids.prompt == tuple(b"Do.\n\nHi there")


async def test_the_servers_own_split_holds_where_a_request_says_nothing(lengths: FakeLengths) -> None:
    async with live_server(lengths=lengths, instruction_split=InstructionSplit.FIRST_LINE) as live:
        await live.chat(messages=[{"role": "user", "content": "Do.\nHi"}])
    assert [(one.instruction, one.user_input) for one in lengths.queries] == [("Do.", "Hi")]


async def test_rows_that_run_are_told_to_learners_as_cut_now() -> None:
    config = GatewayConfig(backend=("http://127.0.0.1",), no_journal=True)
    context = PredictorContext(held=lambda seconds: None, late=lambda seconds: None)
    async with AsyncExitStack() as stack:
        lengths = await open_recorded_lengths(stack, config, "m", TokenFeatures.hashed(10), context)
        assert isinstance(lengths.learning, OnlineForest)
        for scope, generated in (("a", 30), ("a", 0), ("b", 50)):
            one = request(generated)
            one.generated = generated
            prediction = Prediction(20.0, Source.OWN, (1.0,))
            lengths.note(one, LengthQuery("", "", 4, 100, (1,), scope=scope), prediction, lambda *_: None)
        assert [*lengths.learning.running("a")] == [ServedRow((1.0,), 20.0, 30, True, "a")]


async def test_what_waits_is_predicted_again_while_little_is_known() -> None:
    """A burst at a new server was served by arrival to its end."""
    features = TokenFeatures.hashed(100)
    forest = OnlineForest(features, inline, VirtualClock())
    lengths = Lengths(GatewayConfig(), "m", learning=forest)
    lengths.front = MicroBatcher(forest, lengths.history, idle_share=1.0)
    revised = dict[Request, float]()

    def revise(one: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        assert length is not None and distribution is not None
        revised[one] = length

    async with background(lengths.front.run(), "front"):
        rows = [request(row_id) for row_id in range(24)]
        for one in rows:  # of two kinds
            kind = one.row_id % 2
            asked = LengthQuery("", "", 20, 1000, tuple(range(50 * kind, 50 * kind + 20)))
            lengths.note(one, asked, await lengths.front.predict(asked), revise)
        assert not revised
        rows[12].state = State.RUNNING
        for one in rows[:12]:
            one.state, one.generated = State.FINISHED, 400 if one.row_id % 2 else 10
            lengths.on_end(one, FinishReason.STOP, 1.0)
        while not {*rows[13:]} <= {*revised} or lengths._expecting:
            await asyncio.sleep(0)
    assert {*revised} == {*rows[13:]}
    assert all((length > 200) == one.row_id % 2 for one, length in revised.items())


async def test_an_oracle_wants_to_be_told() -> None:
    async with live_server(allow_replay=True, lengths=Oracle()) as live:
        await live.refused("/v1/completions", {"prompt": "Hi"}, param="replay_tokens", said="replay_tokens")
        assert live.dispatcher.submitted == []
        assert (await live.complete(prompt="Hi", replay_tokens=5))["metrics"]["predicted_tokens"] == 5
