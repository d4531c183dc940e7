"""Requests that bring the length of their answer (design 3.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.api.input.schema import ChatBody, CompletionBody, Message
from server.api.limits import Limits
from tests.server.api.input.test_sampling import sampling_params
from tests.server.live import Live, chat_body, live_server

ROOT = Path(__file__).parents[3]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [Message("user", "Hi")]


@pytest.fixture
async def replaying(pool: ThreadPoolExecutor, limits: Limits) -> AsyncIterator[Live]:
    """A server that was started with --allow-replay."""
    async with live_server(pool, limits, allow_replay=True) as live:
        yield live


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat_body(replay_tokens=5)), (COMPLETIONS, {"prompt": "Hi", "replay_tokens": 5})]
)
async def test_a_length_is_refused_where_the_server_does_not_replay(
    live: Live, path: str, body: dict[str, object]
) -> None:
    status, reply = await live.post(path, body)
    assert (status, reply["error"]["param"], reply["error"]["code"]) == (400, "replay_tokens", "unsupported")
    assert "--allow-replay" in reply["error"]["message"]
    assert live.dispatcher.submitted == []


async def test_a_length_of_null_is_none(live: Live) -> None:
    await live.chat(replay_tokens=None)
    assert live.dispatcher.submitted[0].sampling.replay_tokens is None


async def test_a_length_reaches_the_engine_from_both_endpoints_and_for_every_choice(replaying: Live) -> None:
    await replaying.chat(replay_tokens=5, max_tokens=40)
    await replaying.complete(prompt="Hi", replay_tokens=6, n=2)
    sent = [request.sampling for request in replaying.dispatcher.submitted]
    assert [each.replay_tokens for each in sent] == [5, 6, 6]
    assert [each.max_tokens for each in sent] == [40, 16, 16]  # the length tells the scheduler no bound


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"replay_tokens": 0}, "replay_tokens", "invalid_value"),
        ({"replay_tokens": -1}, "replay_tokens", "invalid_value"),
        ({"replay_tokens": 1.5}, "replay_tokens", "invalid_value"),
        ({"replay_tokens": "5"}, "replay_tokens", "invalid_value"),
        ({"replay_tokens": 2**40}, "replay_tokens", "invalid_value"),
        ({"replay_tokens": 255}, "replay_tokens", "context_length_exceeded"),
        ({"replay_tokens": 3, "min_tokens": 4}, "min_tokens", "invalid_request"),
    ],
)
async def test_a_length_that_cannot_be_is_refused(
    replaying: Live, fields: dict[str, object], param: str, code: str
) -> None:
    status, reply = await replaying.post(COMPLETIONS, {"prompt": "Hi", **fields})
    assert (status, reply["error"]["param"], reply["error"]["code"]) == (400, param, code)
    assert replaying.dispatcher.submitted == []


async def test_the_longest_length_that_fits_the_context_is_taken(replaying: Live) -> None:
    assert (
        sampling_params(ChatBody(messages=MESSAGES, replay_tokens=246), replaying.service.model, 10).replay_tokens
        == 246
    )


async def test_a_length_beyond_max_tokens_is_taken_and_cut_there(replaying: Live) -> None:
    sampling = sampling_params(CompletionBody(prompt="Hi", replay_tokens=50, max_tokens=9), replaying.service.model, 2)
    assert (sampling.replay_tokens, sampling.max_tokens) == (50, 9)


def test_no_decision_of_the_scheduler_can_see_a_length_but_an_oracles() -> None:
    files = [file for file in (ROOT / "scheduler").rglob("*.py") if "oracle" not in file.name]
    assert len(files) > 5
    assert [file.name for file in files if "replay_tokens" in file.read_text(encoding="utf-8")] == []
