"""How a body's fields become the parameters of an answer, and requests that bring its length (design 3.1)."""

from pathlib import Path
from typing import Any

import pytest

from engine.sampling.params import SamplingParams
from models.network.generation_config import SamplingDefaults
from server.api.input.prompts import Prompt
from server.api.input.sampling import list_sampling
from server.api.input.schema import ChatBody, CompletionBody, Message
from server.api.served_model import ServedModel, seed_source
from tests.server.live import CHAT, COMPLETIONS, Live, changed, chat_body, live_server

MESSAGES = [Message("user", "Hi")]


def sampling_params(body: ChatBody | CompletionBody, model: ServedModel) -> SamplingParams:
    """The parameters of the last answer that a body asks for, whose prompts have 10 tokens."""
    return list_sampling(body, [Prompt((1,) * 10)], model)[-1][-1]


MEANINGS = [
    ({}, {"temperature": 0.7, "top_k": 40, "top_p": 1.0, "min_p": 0.0}),  # as the model recommends
    ({"temperature": 0, "top_k": 0}, {"temperature": 0, "top_k": 0}),  # what is said wins even when it is zero
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_p": 0}, {"temperature": 0}),
    ({"top_p": 0.01}, {"temperature": 0.7}),
    ({"stop": "end"}, {"stop": ("end",)}),
    ({"logprobs": True}, {"logprobs": 0}),
    ({"logprobs": False}, {"logprobs": None}),
]


@pytest.mark.parametrize(("asked", "meant"), MEANINGS)
async def test_fields_mean_what_they_do_elsewhere(live: Live, asked: dict[str, Any], meant: dict[str, object]) -> None:
    sampling = sampling_params(ChatBody(messages=MESSAGES, **asked), live.service.model)
    assert {name: getattr(sampling, name) for name in meant} == meant


async def test_as_many_stop_texts_are_taken_as_any_client_sends(live: Live) -> None:
    stops = [f"<stop {place}>" for place in range(257)]
    for path, field in ((CHAT, "stop"), (COMPLETIONS, "stop"), ("/v1/messages", "stop_sequences")):
        body = {"prompt": "Hi", "max_tokens": 5} if path == COMPLETIONS else chat_body(max_tokens=5)
        await live.obtain(path, body | {field: stops[1:]})
        assert len(live.dispatcher.submitted[-1].sampling.stop) == 256
        await live.refused(path, body | {field: stops})


async def test_every_field_reaches_the_engine(live: Live) -> None:
    given: dict[str, Any] = {
        **{"max_tokens": 9, "top_p": 0.5, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True, "presence_penalty": 1},
        **{"frequency_penalty": -1, "repetition_penalty": 1.5, "include_stop_str_in_output": True},
    }
    lists: dict[str, Any] = {"logit_bias": {"3": -2, "4": 2.5}, "stop": ["a", "b"], "stop_token_ids": [5]}
    body = CompletionBody(prompt="Hi", **given, **lists, logprobs=3, echo=True, prompt_logprobs=1)
    sampling = sampling_params(body, live.service.model)
    told = {"logit_bias": ((3, -2.0), (4, 2.5)), "stop": ("a", "b"), "stop_token_ids": (5,)}
    told |= given | {"logprobs": 3, "prompt_logprobs": 3}
    assert {name: getattr(sampling, name) for name in told} == told


async def test_nul_is_a_character_like_others(live: Live) -> None:
    """Random prompts of benchmarks hold it, and tokenizers encode it."""
    await live.chat(messages=[{"role": "user", "content": "a\0b"}], stop="a\0")
    await live.complete(prompt=["a\0", "\0"])
    asked = live.dispatcher.submitted
    assert [0 in request.prompt for request in asked] == [True] * 3
    assert asked[0].sampling.stop == ("a\0",)
    await live.obtain("/v1/responses", {"instructions": "\0", "input": "a\0", "store": False})
    assert (await live.obtain("/tokenize", {"prompt": "a\0"}))["tokens"] == [97, 0]


SHORT, LONG = {"max_tokens": 20, "allow_replay": True}, {"max_tokens": 1000}
CAPPED = SHORT | {"sampling": SamplingDefaults(max_new_tokens=12)}
LIMITS: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    # (the server's settings, what a chat says, max_tokens of its answer)
    ({}, {}, 256 - 10),  # the rest of the context
    ({}, {"max_tokens": 9, "max_completion_tokens": 5}, 5),
    (SHORT, {}, 20),
    (SHORT, {"max_tokens": 200}, 200),
    (SHORT, {"min_tokens": 30}, 30),  # what a request says outweighs what it leaves out
    (SHORT, {"replay_tokens": 40}, 40),
    (SHORT, {"replay_tokens": 50, "max_tokens": 9}, 9),
    (SHORT, {"replay_tokens": 246}, 246),  # the longest that fits the context
    (LONG, {}, 256 - 10),
    (CAPPED, {}, 12),
    (CAPPED, {"max_tokens": 200}, 12),  # as in vLLM, what a request asks for is cut too
    (CAPPED, {"max_tokens": 5}, 5),
]


@pytest.mark.parametrize("case", LIMITS)
async def test_the_default_gives_way_to_what_a_request_says_and_both_to_bounds(live: Live, case: Any) -> None:
    server, fields, expected = case
    sampling = sampling_params(ChatBody(messages=MESSAGES, **fields), changed(live.service, server).model)
    assert (sampling.max_tokens, sampling.replay_tokens) == (expected, fields.get("replay_tokens"))


async def test_completions_have_their_own_default_within_max_new_tokens(live: Live) -> None:
    echo: dict[str, Any] = {"echo": True, "max_tokens": 0}
    for server, fields, expected in (({"max_tokens": 2}, {}, 16), (CAPPED, {}, 12), (CAPPED, echo, 1)):
        body = CompletionBody(prompt="Hi", **fields)
        assert sampling_params(body, changed(live.service, server).model).max_tokens == expected


async def test_seeds_that_a_server_draws_follow_on_within_64_bits(live: Live) -> None:
    model = changed(live.service, {"next_seed": lambda: 2**64 - 1}).model
    assert sampling_params(ChatBody(messages=MESSAGES, n=2), model).seed == 0


def test_a_servers_seed_makes_the_seeds_of_its_answers_repeatable() -> None:
    first, second, other = seed_source(1), seed_source(1), seed_source(2)
    row = [first() for _ in range(5)]
    assert [second() for _ in range(5)] == row
    assert other() not in row
    assert seed_source(None)() != seed_source(None)()


ROOT = Path(__file__).parents[4]


async def test_a_length_is_refused_where_nothing_is_replayed(live: Live) -> None:
    await live.chat(replay_tokens=None)
    for path, body in ((CHAT, chat_body(replay_tokens=5)), (COMPLETIONS, {"prompt": "Hi", "replay_tokens": 5})):
        await live.refused(path, body, param="replay_tokens", code="unsupported", said="--allow-replay")
    (taken,) = live.dispatcher.submitted
    assert taken.sampling.replay_tokens is None


async def test_a_length_reaches_the_engine_from_both_endpoints_and_for_every_choice() -> None:
    async with live_server(allow_replay=True) as live:
        await live.chat(replay_tokens=5, max_tokens=40)
        await live.complete(prompt="Hi", replay_tokens=6, n=2)
    sent = [request.sampling for request in live.dispatcher.submitted]
    # The length tells the scheduler no bound.
    assert [(each.replay_tokens, each.max_tokens) for each in sent] == [(5, 40), (6, 16), (6, 16)]


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    *(({"replay_tokens": one}, "replay_tokens", "invalid_value") for one in (0, -1, 1.5, "5")),
    ({"replay_tokens": 2**40}, "replay_tokens", "context_length_exceeded"),
    ({"replay_tokens": 255}, "replay_tokens", "context_length_exceeded"),
    ({"replay_tokens": 3, "min_tokens": 4}, "min_tokens", "invalid_request"),
]


async def test_odd_lengths_are_refused() -> None:
    async with live_server(allow_replay=True) as live:
        for fields, param, code in IMPOSSIBLE:
            await live.refused(COMPLETIONS, {"prompt": "Hi", **fields}, param=param, code=code)
    assert live.dispatcher.submitted == []


def test_no_decision_of_the_scheduler_can_see_a_length_but_an_oracles() -> None:
    files = [file for file in (ROOT / "scheduler").rglob("*.py") if "oracle" not in file.name]
    assert len(files) > 5
    assert [file.name for file in files if "replay_tokens" in file.read_text(encoding="utf-8")] == []
